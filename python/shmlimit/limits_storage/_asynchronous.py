"""The storage for the scheme `async+shm`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from limits.aio.storage.base import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from shmlimit.limits_storage._counters import ERRORS, Counters

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _at_once(
    method: Callable[Concatenate[Counters, Parameters], Result],
) -> Callable[Concatenate[AsyncShmStorage, Parameters], Coroutine[Any, Any, Result]]:
    """Makes a method of the counters a coroutine that never waits."""

    @wraps(method)
    async def answer(self: AsyncShmStorage, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return method(self._counters, *args, **kwargs)

    return answer


class AsyncShmStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """Counts in shared memory: see `shmlimit.limits_storage`. Counting takes about a microsecond and does not wait."""

    STORAGE_SCHEME: list[str] | None = ["async+shm"]  # noqa: RUF012 (as the base class has it)

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: float | str | bool) -> None:
        """Makes a storage on the directory that the URI names.

        Args:
            uri: Such as `async+shm:///dev/shm/myapp.limits?max_keys=100000`.
            wrap_exceptions: Whether segment errors are raised as `limits.errors.StorageError`.
            **options: The same options as in the URI; these take precedence.
        """
        super().__init__(uri, wrap_exceptions)
        self._counters = Counters(uri, options)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The errors that counting may raise."""
        return ERRORS

    incr = _at_once(Counters.incr)
    get = _at_once(Counters.get)
    get_expiry = _at_once(Counters.get_expiry)
    check = _at_once(Counters.check)
    reset = _at_once(Counters.reset)
    clear = _at_once(Counters.clear)
    acquire_entry = _at_once(Counters.acquire_entry)
    get_moving_window = _at_once(Counters.get_moving_window)
    acquire_sliding_window_entry = _at_once(Counters.acquire_sliding_window_entry)
    get_sliding_window = _at_once(Counters.get_sliding_window)
    clear_sliding_window = _at_once(Counters.clear_sliding_window)
