"""Waiting in a greenlet, which lets the other greenlets of its hub run meanwhile."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from shmlimit import _native
from shmlimit._event_loops import Place

if TYPE_CHECKING:
    from shmlimit._by_arguments import Costs

Result = TypeVar("Result")


class _Place:
    """A greenlet that waits."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def wake(self) -> None:
        self._event.set()

    async def woken(self) -> None:
        # Switches to the hub, so the coroutine itself never waits.
        self._event.wait()
        self._event.clear()


class HubRoom:
    """The waiting greenlets of one hub, which watches the wake event for them."""

    def __init__(self, hub: Any) -> None:
        self.wake_event = _native.WakeEvent()
        self._new_event = importlib.import_module("gevent.event").Event
        self._watcher = hub.loop.io(self.wake_event.fileno(), 1)
        self._places: dict[int, _Place] = {}
        self._numbers = itertools.count()

    async def checkpoint(self) -> None:
        """As with gevent's own locks, an operation that need not wait does not let others run."""

    def enter(self) -> tuple[int, Place]:
        """Gives the greenlet a number and a place to wait."""
        if not self._places:
            self._watcher.start(self._answer)
        number = next(self._numbers)
        place = self._places[number] = _Place(self._new_event())
        return number, place

    def leave(self, number: int) -> None:
        """Frees the number and the place."""
        del self._places[number]
        if not self._places:
            self._watcher.stop()

    def stop(self) -> None:
        """Stops watching the wake event."""
        self._watcher.stop()

    def _answer(self) -> None:
        for number in self.wake_event.answer():
            place = self._places.get(number)
            if place is not None:
                place.wake()


_rooms: weakref.WeakKeyDictionary[Any, HubRoom] = weakref.WeakKeyDictionary()


def _leave_rooms_to_the_parent() -> None:
    """Stops watching: a forked child has its parent's hubs and greenlets, but must not take the parent's wake-ups."""
    for room in list(_rooms.values()):
        room.stop()
    _rooms.clear()


os.register_at_fork(after_in_child=_leave_rooms_to_the_parent)


def let_wait(owner: type) -> None:
    """Makes `acquire` of a class, for all its objects, let a hub's other greenlets run while it waits.

    Does so once, and only if the process has imported gevent: others keep the native method, which takes a third of the
    time.

    Args:
        owner: The class.
    """
    if "gevent" not in sys.modules or "acquire" in vars(owner):
        return
    native: Callable[..., _native.Permit] = owner.acquire  # type: ignore[attr-defined]

    def acquire(self: Any, costs: Costs | None = None, **arguments: Any) -> _native.Permit:
        room = _hub_room()
        if room is None:
            return native(self, costs, **arguments)
        permit: _native.Permit = _run(self.acquire_async(costs, **arguments).begin_in(room))
        return permit

    acquire.__name__, acquire.__qualname__, acquire.__doc__ = "acquire", native.__qualname__, native.__doc__
    owner.acquire = acquire  # type: ignore[attr-defined]


def _hub_room() -> HubRoom | None:
    """The waiting room of this thread's hub; None if the thread has no hub, and so no other greenlets to let run."""
    # gevent's public `get_hub` makes a hub for a thread that has none.
    hub = importlib.import_module("gevent._hub_local").get_hub_if_exists()
    if hub is None:
        return None
    room = _rooms.get(hub)
    if room is None:
        room = _rooms[hub] = HubRoom(hub)
    return room


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs to its end a coroutine that waits only in a hub's room.

    Args:
        coroutine: The coroutine.

    Returns:
        Its result.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that only waits in a hub's room waited elsewhere")
