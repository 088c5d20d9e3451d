"""Pools: choosing among several sets."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from shmlimit import _greenlets, _native
from shmlimit._acquisition import Acquisition
from shmlimit._by_arguments import Costs, check_costs, check_timeout
from shmlimit._declaration import Amount

if TYPE_CHECKING:
    from shmlimit._set_handle import SetHandle


class Pool(_native.Pool):
    """Chooses among several sets (regions, accounts, endpoints), separately in each process.

    The permit carries the name and the metadata of the chosen set. A pool pickles as its definition; unpickled, it
    starts over.

    Attributes:
        members: The sets.
        strategy: How it chooses.
        failover: Whether it asks the next set if one refuses.
        worker_index: The index of the set that takes the first turn, such as the number of a worker; past the last
            set, it wraps around. By default each process begins with a different set, even if it was forked or has
            unpickled the pool.
    """

    __slots__ = ("failover", "members", "strategy", "worker_index")

    members: tuple[SetHandle, ...]
    strategy: str
    failover: bool
    worker_index: int | None

    def __init__(
        self,
        members: Sequence[SetHandle],
        strategy: Literal["round_robin", "random", "least_loaded"] = "round_robin",
        *,
        failover: bool = False,
        worker_index: int | None = None,
    ) -> None:
        _greenlets.let_wait(Pool)
        self.members = tuple(members)
        self.strategy = strategy
        self.failover = failover
        self.worker_index = worker_index

    def labelled(self, label: str) -> Pool:
        """Returns a pool of the same sets whose requests are labelled. Its turns start over.

        Args:
            label: The label, as for `SetHandle.labelled`.

        Returns:
            The pool.
        """
        return _made_of(
            [member.labelled(label) for member in self.members], self.strategy, self.failover, self.worker_index
        )

    def acquire_async(
        self,
        costs: Costs | None = None,
        *,
        timeout: float | timedelta | None = None,
        heartbeat: bool = False,
        **named: Amount,
    ) -> Acquisition:
        """Acquires a permit in an asyncio or trio task.

        Args:
            costs: What to take of each limit.
            timeout: Seconds to wait at most, counted from when the result is awaited or entered.
            heartbeat: Whether the leases are renewed until the permit is released.
            **named: Costs as keywords, as for `SetHandle.try_acquire`.

        Returns:
            An object to await for the permit, or to enter with `async with`.

        Raises:
            AcquireTimeout: When awaited, as for `acquire`.
            Refused: When awaited, as for `acquire`.
            TypeError: At once, if the costs are not a mapping; when awaited, if a keyword is neither a parameter nor a
                limit.
            ValueError: At once, if the timeout is negative.
        """
        check_costs(costs)
        check_timeout(timeout)
        return Acquisition(lambda: self._begin(costs, named, timeout, heartbeat))

    def __getitem__(self, index: int) -> SetHandle:
        """Returns the set at an index; a negative index counts from the end.

        Args:
            index: The index: an integer, since sets of several segments may have the same name.

        Returns:
            The set.

        Raises:
            IndexError: The index is out of range.
            TypeError: It is not an integer.
        """
        return self.members[operator.index(index)]

    def __iter__(self) -> Iterator[SetHandle]:
        return iter(self.members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_of, (self.members, self.strategy, self.failover, self.worker_index)


def _made_of(members: Sequence[SetHandle], strategy: Any, failover: bool, worker_index: int | None) -> Pool:
    return Pool(members, strategy, failover=failover, worker_index=worker_index)
