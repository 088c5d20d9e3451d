"""The storage of the scheme `shm`."""

from __future__ import annotations

from limits.storage.base import MovingWindowSupport, SlidingWindowCounterSupport, Storage, TimestampedSlidingWindow

import shmlimit
from shmlimit.limits_storage._counters import Counters


class ShmStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """Counts in shared memory: see `shmlimit.limits_storage`."""

    STORAGE_SCHEME: list[str] | None = ["shm"]  # noqa: RUF012 (as the base class has it)

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: float | str | bool) -> None:
        """Makes the folder that the URI names, if it is not there.

        Args:
            uri: As `shm:///dev/shm/myapp.limits?max_keys=100000`.
            wrap_exceptions: Whether errors of the segments are raised as `limits.errors.StorageError`.
            **options: As those of the URI, and before them.
        """
        super().__init__(uri, wrap_exceptions)
        self._counters = Counters(uri, options)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What can go wrong."""
        return (shmlimit.Error, OSError)

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window that begins with the first of its requests; answers the count."""
        return self._counters.incr(key, expiry, amount)

    def get(self, key: str) -> int:
        """What a fixed window has counted."""
        return self._counters.get(key)

    def get_expiry(self, key: str) -> float:
        """When a fixed window ends, in seconds since the Unix epoch; now, where none has begun."""
        return self._counters.get_expiry(key)

    def check(self) -> bool:
        """Whether the files can be used."""
        return self._counters.check()

    def reset(self) -> int | None:
        """Forgets everything; answers how many keys had something counted."""
        return self._counters.reset()

    def clear(self, key: str) -> None:
        """Forgets what fixed and moving windows have counted under a key."""
        self._counters.clear(key)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes places in a moving window, all or none."""
        return self._counters.acquire_entry(key, limit, expiry, amount)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest request counted in a moving window came, and how many are counted."""
        return self._counters.get_moving_window(key, limit, expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes places in a sliding window that is reckoned from two counters, all or none."""
        return self._counters.acquire_sliding_window_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """How a sliding window stands: both counters told as one, with the end of its next unit."""
        return self._counters.get_sliding_window(key, expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets what a sliding window has counted under a key."""
        self._counters.clear_sliding_window(key, expiry)
