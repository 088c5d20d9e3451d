"""Waiting for a permit in a task of an event loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn

from shmlimit import _native
from shmlimit._event_loops import WaitingRoom, current_task, waiting_room


class Acquisition:
    """A request that a task can await, or enter with `async with`. Only then does it join the queue.

    Each `await` and each `async with` is a separate request. `asyncio.create_task` needs a coroutine: give it one that
    awaits this, or use `asyncio.ensure_future`.

    Until it is awaited or entered, nothing is taken: testing whether it is true raises `TypeError`, and dropping it
    gives a `RuntimeWarning`, as with a coroutine that was never awaited.
    """

    __slots__ = ("_begin", "_entered", "_is_begun")

    def __init__(self, begin: Callable[[], _native.Waiting]) -> None:
        self._begin = begin
        self._entered: list[tuple[object, _native.Permit]] = []
        self._is_begun = False

    def __bool__(self) -> bool:
        if not self._is_begun:
            raise TypeError(
                "this acquisition was neither awaited nor entered, so nothing is taken: write "
                "`await limits.acquire_async()` or `async with limits.acquire_async():`"
            )
        return True

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        # While the interpreter shuts down, the module's globals may be gone.
        if not self._is_begun:
            _warn(
                "an acquisition was never awaited or entered, so nothing was taken",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("an acquisition stays in its process and does not pickle: pass the handle, and ask there")

    def __await__(self) -> Generator[Any, Any, _native.Permit]:
        return self._acquire().__await__()

    async def __aenter__(self) -> _native.Permit:
        task = current_task()
        permit = await self._acquire()
        self._entered.append((task, permit))
        return permit

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = current_task()
        # This task's latest permit; if it was entered by another task, the latest of all.
        own = [index for index, (entered_by, _) in enumerate(self._entered) if entered_by is task]
        _, permit = self._entered.pop(own[-1] if own else -1)
        permit.__exit__(exception_type, exception, traceback)

    async def _acquire(self) -> _native.Permit:
        # Counts as awaited, even if it turns out that no event loop runs here.
        self._is_begun = True
        return await self.begin_in(waiting_room())

    def begin_in(self, room: WaitingRoom) -> Coroutine[Any, Any, _native.Permit]:
        """Waits for a permit in a room.

        Args:
            room: The room of an event loop or a hub.

        Returns:
            The coroutine that waits.
        """
        self._is_begun = True
        return _acquire_in(room, self._begin)


async def _acquire_in(room: WaitingRoom, begin: Callable[[], _native.Waiting]) -> _native.Permit:
    """Waits for a permit in the room of an event loop.

    Args:
        room: The room.
        begin: Makes the request.

    Returns:
        The permit.
    """
    await room.checkpoint()
    waiting = begin()
    number, place = room.enter()
    permit = None
    try:
        # Once `look` has found the permit, the task does not wait again, so it cannot be cancelled before it returns.
        while (permit := waiting.look(room.wake_event, number)) is None:
            await place.woken()
    finally:
        # The queue comes first: leaving the room calls the loop, which may be a class of the program's own, and raise.
        waiting.close()
        try:
            room.leave(number)
        except BaseException:
            if permit is not None:
                permit.release()
            raise
    return permit
