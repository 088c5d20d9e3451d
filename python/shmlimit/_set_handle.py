"""Handles of sets of limits."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from shmlimit import _greenlets, _native
from shmlimit._acquisition import Acquisition
from shmlimit._by_arguments import ByArguments, Costs, Key, Overrides, check_costs, check_overrides, check_timeout
from shmlimit._declaration import Amount
from shmlimit._limited import P, R, runs_in_a_task, wrap

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmlimit._segment import Segment


class SetHandle(_native.SetHandle):
    """The handle of a set: limits that are taken together, and shared by all processes that have the segment open.

    A handle may be used by any number of threads, event loops and forked children. It pickles as the segment's path and
    the set's name; unpickling opens that segment.
    """

    __slots__ = ("__weakref__", "_segment")

    _segment: Segment

    def __new__(cls, segment: Segment, name: str) -> Self:
        """Creates a handle of a set, like `segment[name]`."""
        _greenlets.let_wait(SetHandle)
        self = super().__new__(cls, segment, name, strict=segment.strict)
        # Keeps the segment open, so that unpickled handles of the same segment find it.
        self._segment = segment
        return self

    def labelled(self, label: str) -> SetHandle:
        """Returns a handle of the same set whose requests are labelled with what they are for.

        The label appears, truncated to 64 bytes, in the events that `shmlimit.open(..., log_requests=True)` logs. If
        the set is declared with `labels=True`, holds have it too, in `Segment.snapshot` and `limitctl inspect`. Debits
        have no label.

        Args:
            label: The label, such as `"nightly-import"`.

        Returns:
            The handle, which pickles with its label.
        """
        labelled = _native.SetHandle.__new__(type(self), self, self.name, label=label)
        labelled._segment = self._segment
        return labelled

    def acquire_async(
        self,
        costs: Costs | None = None,
        *,
        key: Key | None = None,
        timeout: float | timedelta | None = None,
        heartbeat: bool = False,
        tier: str | None = None,
        overrides: Overrides | None = None,
        **named: Amount,
    ) -> Acquisition:
        """Acquires a permit in an asyncio (also uvloop) or trio task, in the same queue as every other process.

        Args:
            costs: What to take of each limit, as for `try_acquire`.
            key: The key whose limits are used, if the set is keyed.
            timeout: Seconds to wait at most, counted from when the result is awaited or entered. By default it waits
                as long as it takes, provided there is room in the queue (the `waiters` of the set's declaration).
            heartbeat: Whether the leases are renewed until the permit is released, as for `acquire`.
            tier: The tier to put the key into, as for `acquire`.
            overrides: The key's own capacities, as for `acquire`.
            **named: Costs as keywords, as for `try_acquire`.

        Returns:
            An object to await for the permit, or to enter with `async with`, which releases the permit at the end.

        Raises:
            AcquireTimeout: When awaited, as for `acquire`.
            Refused: When awaited, as for `acquire`.
            RequestError: When awaited, as for `acquire`.
            TypeError: At once, if the costs or the overrides are not a mapping; when awaited, if a keyword is neither a
                parameter nor a limit.
            ValueError: At once, if the timeout is negative.
        """
        check_costs(costs)
        check_timeout(timeout)
        check_overrides(overrides)
        return Acquisition(lambda: self._begin(costs, named, key, timeout, heartbeat, tier, overrides))

    @overload
    def limited(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def limited(
        self,
        function: None = None,
        /,
        *,
        costs: Costs | Callable[..., Costs | Awaitable[Costs | None] | None] | None = None,
        key: Key | Callable[..., Key | Awaitable[Key | None] | None] | None = None,
        timeout: float | timedelta | None = None,
        heartbeat: bool = False,
        tier: str | Callable[..., str | Awaitable[str | None] | None] | None = None,
        overrides: Overrides | Callable[..., Overrides | Awaitable[Overrides | None] | None] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def limited(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        costs: Costs | Callable[..., Costs | Awaitable[Costs | None] | None] | None = None,
        key: Key | Callable[..., Key | Awaitable[Key | None] | None] | None = None,
        timeout: float | timedelta | None = None,
        heartbeat: bool = False,
        tier: str | Callable[..., str | Awaitable[str | None] | None] | None = None,
        overrides: Overrides | Callable[..., Overrides | Awaitable[Overrides | None] | None] | None = None,
    ) -> Any:
        """Makes a function wait for a permit before it runs, and give it back when it ends.

        Works for functions, coroutine functions, generators and asynchronous generators; generators hold their permit
        from their first step to their end. A function whose work outlasts its return holds its permit until the work is
        over: until the future or task that it returned is done, or until the generator that it returned has ended or is
        dropped. A function that returns a coroutine, another awaitable, a context manager made by `contextlib` or a
        streaming response raises `TypeError` on return, because nothing here would know when its work ends.

        Args:
            function: The function, if this is used without arguments.
            costs: What to take of each limit, or a function that returns it for the call's arguments. That function
                may be asynchronous if the limited function is; the same goes for those below.
            key: The key whose limits are used, or a function that returns it for the call's arguments.
            timeout: Seconds to wait at most; by default as long as it takes.
            heartbeat: Whether the leases are renewed while the function runs, as for `acquire`.
            tier: The tier to put the key into, as for `acquire`, or a function of the call's arguments.
            overrides: The key's own capacities, as for `acquire`, or a function of the call's arguments.

        Returns:
            The limited function, or a decorator that makes one. When called, it raises what `acquire` raises.

        Raises:
            TypeError: The costs or the overrides are neither a mapping nor a function, or the decorated object is not a
                function.
            ValueError: The timeout is negative.
        """
        if function is not None and not (callable(function) or isinstance(function, (staticmethod, classmethod))):
            raise TypeError(
                f'{function!r} is not a function: name what to take, as in limited(costs={{"tokens": 1500}})'
            )
        if not callable(costs):
            check_costs(costs)
        if not callable(overrides):
            check_overrides(overrides)
        check_timeout(timeout)
        by_arguments = ByArguments(costs, key, tier, overrides)

        def acquire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Permit:
            costs, key, tier, overrides = by_arguments.of(args, kwargs)
            return self.acquire(costs, key=key, timeout=timeout, heartbeat=heartbeat, tier=tier, overrides=overrides)

        async def acquire_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Permit:
            costs, key, tier, overrides = await by_arguments.of_async(args, kwargs)
            return await self.acquire_async(
                costs, key=key, timeout=timeout, heartbeat=heartbeat, tier=tier, overrides=overrides
            )

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not runs_in_a_task(function):
                by_arguments.refuse_asynchronous()
            return wrap(function, acquire, acquire_async)

        return decorate if function is None else decorate(function)

    def successor(self) -> SetHandle | None:
        """If the segment was removed, returns the set of the same name in the segment that replaced it at the path.

        Returns:
            A handle, opened as `Segment.successor` describes; None if there is no such segment yet.

        Raises:
            UnknownName: The new segment has no set of this name.
            SegmentError: The new segment cannot be used.
        """
        if not self._has_successor():
            return None
        successor = self._segment._open_successor()[self.name]
        return successor if self.label is None else successor.labelled(self.label)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.label is None:
            return operator.getitem, (self._segment, self.name)
        return _labelled, (self._segment, self.name, self.label)


def _labelled(segment: Segment, name: str, label: str) -> SetHandle:
    return segment[name].labelled(label)
