"""How tasks sleep until their request is worth another look, on any event loop.

Each loop has a wake event: a file descriptor that becomes readable when the process's one waiting thread has news for
it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shmlimit import _native

Result = TypeVar("Result")


class Place(Protocol):
    """Where one task waits."""

    async def woken(self) -> None:
        """Sleeps until the place is woken; returns at once if it was woken since this was last called."""


class WaitingRoom(Protocol):
    """The waiting tasks of one event loop."""

    wake_event: _native.WakeEvent

    async def checkpoint(self) -> None:
        """Does what the loop expects of every operation that may wait, even if it does not."""

    def enter(self) -> tuple[int, Place]:
        """Gives the task a number and a place to wait."""

    def leave(self, number: int) -> None:
        """Frees the number and the place."""


class _AsyncioPlace:
    """A task of asyncio."""

    __slots__ = ("_is_woken", "_loop", "_sleep")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sleep: asyncio.Future[None] | None = None
        self._is_woken = False

    def wake(self) -> None:
        self._is_woken = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    async def woken(self) -> None:
        if not self._is_woken:
            self._sleep = self._loop.create_future()
            try:
                await self._sleep
            finally:
                self._sleep = None
        self._is_woken = False


class _AsyncioRoom:
    """The tasks of one loop of asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.wake_event = _native.WakeEvent()
        self._places: dict[int, _AsyncioPlace] = {}
        self._numbers = itertools.count()
        self._process = os.getpid()

    async def checkpoint(self) -> None:
        # As with asyncio's own locks, an operation that need not wait does not yield.
        pass

    def enter(self) -> tuple[int, Place]:
        if not self._places:
            self.loop.add_reader(self.wake_event.fileno(), self._answer)
            _rooms.empty = None
        number = next(self._numbers)
        place = self._places[number] = _AsyncioPlace(self.loop)
        return number, place

    def leave(self, number: int) -> None:
        del self._places[number]
        # A forked child shares the loop's selector with its parent, which still waits.
        if not self._places and not self.loop.is_closed() and os.getpid() == self._process:
            self.loop.remove_reader(self.wake_event.fileno())
            _rooms.empty = self

    def _answer(self) -> None:
        for number in self.wake_event.answer():
            place = self._places.get(number)
            if place is not None:
                place.wake()


class _TrioPlace:
    """A task of trio."""

    __slots__ = ("_event", "_trio")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._event = trio.Event()

    def wake(self) -> None:
        self._event.set()

    async def woken(self) -> None:
        await self._event.wait()
        self._event = self._trio.Event()


class _TrioRoom:
    """The tasks of one run of trio."""

    def __init__(self, trio: Any, token: object) -> None:
        self.token = token
        self.wake_event = _native.WakeEvent()
        self._trio = trio
        self._places: dict[int, _TrioPlace] = {}
        self._numbers = itertools.count()
        # A system task ends with the run, which does not wait for it.
        trio.lowlevel.spawn_system_task(self._answer, name="shmlimit")

    async def checkpoint(self) -> None:
        await self._trio.lowlevel.checkpoint()

    def enter(self) -> tuple[int, Place]:
        number = next(self._numbers)
        place = self._places[number] = _TrioPlace(self._trio)
        return number, place

    def leave(self, number: int) -> None:
        del self._places[number]

    async def _answer(self) -> None:
        while True:
            await self._trio.lowlevel.wait_readable(self.wake_event.fileno())
            for number in self.wake_event.answer():
                place = self._places.get(number)
                if place is not None:
                    place.wake()


class _Rooms(threading.local):
    """The room of each thread's event loop. A thread runs one loop at a time, and may run others later."""

    # Weak, because waiting tasks keep the room alive, and the loop keeps its reader. A strong reference would keep a
    # closed loop alive, and with it the places in the queue of tasks that will never run again.
    asyncio: weakref.ref[_AsyncioRoom] | None = None
    # A room in which nobody waits, kept for the next task that does.
    empty: _AsyncioRoom | None = None
    trio: _TrioRoom | None = None


_rooms = _Rooms()


def waiting_room() -> WaitingRoom:
    """Returns the waiting room of the running event loop.

    Raises:
        RuntimeError: No asyncio or trio loop is running.
    """
    if (trio := _trio_of_the_caller()) is not None:
        token = trio.lowlevel.current_trio_token()
        if _rooms.trio is None or _rooms.trio.token is not token:
            _rooms.trio = _TrioRoom(trio, token)
        return _rooms.trio
    loop = asyncio.get_running_loop()
    room = None if _rooms.asyncio is None else _rooms.asyncio()
    if room is None or room.loop is not loop:
        room = _AsyncioRoom(loop)
        _rooms.asyncio = weakref.ref(room)
    return room


async def in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Runs a blocking function in a thread, so that the event loop can serve other tasks meanwhile.

    Args:
        function: The function.
        *arguments: What it is called with.

    Returns:
        Its result.
    """
    trio = _trio_of_the_caller()
    run = asyncio.to_thread if trio is None else trio.to_thread.run_sync
    result: Result = await run(function, *arguments)
    return result


def current_task() -> object:
    """Returns the current trio or asyncio task; None outside of one."""
    if (trio := _trio_of_the_caller()) is not None:
        task: object = trio.lowlevel.current_task()
        return task
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _trio_of_the_caller() -> Any:
    """The module `trio` if the caller runs in a trio task, otherwise None."""
    # Another thread may be importing it right now. Inside a trio task, the import is complete.
    trio: Any = sys.modules.get("trio")
    in_trio_task = getattr(getattr(trio, "lowlevel", None), "in_trio_task", None)
    return trio if in_trio_task is not None and in_trio_task() else None
