"""The storage for the scheme `shm`."""

from __future__ import annotations

from limits.storage.base import MovingWindowSupport, SlidingWindowCounterSupport, Storage, TimestampedSlidingWindow

from shmlimit.limits_storage._counters import ERRORS, Counters


class ShmStorage(Counters, Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """Counts in shared memory: see `shmlimit.limits_storage`."""

    STORAGE_SCHEME: list[str] | None = ["shm"]  # noqa: RUF012 (as the base class has it)

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: float | str | bool) -> None:
        """Makes a storage on the directory that the URI names.

        Args:
            uri: Such as `shm:///dev/shm/myapp.limits?max_keys=100000`.
            wrap_exceptions: Whether segment errors are raised as `limits.errors.StorageError`.
            **options: The same options as in the URI; these take precedence.
        """
        Storage.__init__(self, uri, wrap_exceptions)
        Counters.__init__(self, uri, options)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The errors that counting may raise."""
        return ERRORS
