"""Sets of limits as their users hold them."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from shmlimit import _native
from shmlimit._acquisition import Acquisition
from shmlimit._by_arguments import ByArguments, Capacities, Costs, Key, check_costs, check_limits, check_timeout
from shmlimit._limited import P, R, runs_in_a_task, wrap

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmlimit._segment import Segment


class Limits(_native.Limits):
    """A set of limits that are taken together, all or nothing, by all processes that have the segment open.

    A handle may be used by any number of threads, event loops and forked children. Pickled, it is the path of the
    segment and the name of the set, and opens that where it arrives.
    """

    __slots__ = ("__weakref__", "_segment")

    _segment: Segment

    def __new__(cls, segment: Segment, name: str) -> Self:
        """Gives a handle of a set, as `segment[name]` does."""
        self = super().__new__(cls, segment, name, strict=segment.strict)
        # Who has the handle of a set has the segment open, for handles of the same that arrive pickled.
        self._segment = segment
        return self

    def labelled(self, label: str) -> Limits:
        """Gives a handle of the same set whose requests say what they are for.

        The label is in the events of `shmlimit.open(..., log_requests=True)`, cut off after 64 bytes. Where the set is
        declared with `labels=True`, what is held has it too, in `Segment.snapshot` and `limitctl inspect`. Debits have
        none.

        Args:
            label: The label, such as `"nightly-import"`.

        Returns:
            The handle, which pickles with its label.
        """
        labelled = _native.Limits.__new__(type(self), self, self.name, label=label)
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
        limits: Capacities | None = None,
    ) -> Acquisition:
        """As `acquire`, for a task of asyncio (also on uvloop) or trio: in the same queue as every other process.

        Args:
            costs: What to take of each limit; as for `try_acquire`.
            key: Who is limited, where the set is keyed.
            timeout: Seconds to wait at most, from when it is awaited or entered on; unless given, as long as it takes
                where there is room in the queue, which has the `waiters` of the set's declaration.
            heartbeat: Whether the leases are renewed until it is released, as for `acquire`.
            tier: The tier that the key is put into, as for `acquire`.
            limits: Which capacities the key has of its own, as for `acquire`.

        Returns:
            What can be awaited, for the permit, or entered by `async with`, which releases it at the end.

        Raises:
            AcquireTimeout: When awaited, as `acquire`.
            Refused: When awaited, as `acquire`.
            RequestError: When awaited, as `acquire`.
            TypeError: At once, where the costs or the limits are no mapping.
            ValueError: At once, where the timeout is negative.
        """
        check_costs(costs)
        check_timeout(timeout)
        check_limits(limits)
        return Acquisition(lambda: self._begin(costs, key, timeout, heartbeat, tier, limits))

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
        limits: Capacities | Callable[..., Capacities | Awaitable[Capacities | None] | None] | None = None,
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
        limits: Capacities | Callable[..., Capacities | Awaitable[Capacities | None] | None] | None = None,
    ) -> Any:
        """Makes a function take a permit before it runs, waiting for it, and give it back when it ends.

        Works for functions, coroutine functions, generators and asynchronous generators, which hold their permit from
        their first step to their end. A function whose work goes on when it returns holds its permit for as long: until
        the future or the task that it returned is done, until the generator that it returned has ended or is dropped.
        One that returns a coroutine, another awaitable, a context manager made by `contextlib` or a streaming response
        is a `TypeError` when it returns that, because nothing here would know when its work ends.

        Args:
            function: The function, where this is used without arguments.
            costs: What to take of each limit, or a function of the call's arguments that says it. That may be
                asynchronous where the limited function is; so may those that follow.
            key: Who is limited, or a function of the call's arguments that says it.
            timeout: Seconds to wait at most; as long as it takes unless given.
            heartbeat: Whether the leases are renewed for as long as the function runs, as for `acquire`.
            tier: The tier that the key is put into, as for `acquire`, or a function of the call's arguments.
            limits: Which capacities the key has of its own, as for `acquire`, or a function of the call's arguments.

        Returns:
            The limited function, or what makes a function one. Called, it raises what `acquire` raises.

        Raises:
            TypeError: The costs or the limits are no mapping and no function, or what is to be limited is no function.
            ValueError: The timeout is negative.
        """
        if function is not None and not (callable(function) or isinstance(function, (staticmethod, classmethod))):
            raise TypeError(f'{function!r} is no function: name what to take, as in limited(costs={{"tokens": 1500}})')
        if not callable(costs):
            check_costs(costs)
        if not callable(limits):
            check_limits(limits)
        check_timeout(timeout)
        by_arguments = ByArguments(costs, key, tier, limits)

        def acquire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Permit:
            costs, key, tier, limits = by_arguments.of(args, kwargs)
            return self.acquire(costs, key=key, timeout=timeout, heartbeat=heartbeat, tier=tier, limits=limits)

        async def acquire_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Permit:
            costs, key, tier, limits = await by_arguments.of_async(args, kwargs)
            return await self.acquire_async(
                costs, key=key, timeout=timeout, heartbeat=heartbeat, tier=tier, limits=limits
            )

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not runs_in_a_task(function):
                by_arguments.refuse_asynchronous()
            return wrap(function, acquire, acquire_async)

        return decorate if function is None else decorate(function)

    def successor(self) -> Limits | None:
        """Gives the set of this name in the segment that is at the path by now, if its own was removed.

        Returns:
            A handle, as `Segment.successor` says; None where there is no such segment yet.

        Raises:
            UnknownSet: The segment has no set of this name.
            SegmentError: What is there cannot be used.
        """
        if not self._has_successor():
            return None
        successor = self._segment._open_successor()[self.name]
        return successor if self.label is None else successor.labelled(self.label)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.label is None:
            return operator.getitem, (self._segment, self.name)
        return _labelled, (self._segment, self.name, self.label)


def _labelled(segment: Segment, name: str, label: str) -> Limits:
    return segment[name].labelled(label)
