"""Pools: choosing among several sets."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from shmlimit import _native
from shmlimit._acquisition import Acquisition
from shmlimit._by_arguments import Costs, check_costs, check_timeout

if TYPE_CHECKING:
    from shmlimit._limits import Limits


class Pool(_native.Pool):
    """A chooser over several sets (regions, accounts, endpoints), of this process alone.

    The permit carries the name and the metadata of the set that was chosen. Pickled, a pool is its definition: where
    it arrives, it begins anew.

    Attributes:
        members: The sets.
        strategy: How it chooses.
        failover: Whether it asks the next set where one refuses.
        worker_index: With which set its turns begin, past the last from the first on again: the number of a worker.
            Unless given, each process begins at a place of its own, also where it was forked or has the pool from a
            pickle.
    """

    __slots__ = ("failover", "members", "strategy", "worker_index")

    members: tuple[Limits, ...]
    strategy: str
    failover: bool
    worker_index: int | None

    def __init__(
        self,
        members: Sequence[Limits],
        strategy: Literal["round_robin", "random", "least_loaded"] = "round_robin",
        *,
        failover: bool = False,
        worker_index: int | None = None,
    ) -> None:
        self.members = tuple(members)
        self.strategy = strategy
        self.failover = failover
        self.worker_index = worker_index

    def labelled(self, label: str) -> Pool:
        """Gives a pool of the same sets whose requests say what they are for, and that begins to choose anew.

        Args:
            label: The label, as for `Limits.labelled`.

        Returns:
            The pool.
        """
        return _made_of(
            [member.labelled(label) for member in self.members], self.strategy, self.failover, self.worker_index
        )

    def acquire_async(
        self, costs: Costs | None = None, *, timeout: float | timedelta | None = None, heartbeat: bool = False
    ) -> Acquisition:
        """As `acquire`, for a task of asyncio or trio.

        Args:
            costs: What to take of each limit.
            timeout: Seconds to wait at most, from when it is awaited or entered on.
            heartbeat: Whether the leases of what is held are renewed until it is released.

        Returns:
            What can be awaited, for the permit, or entered by `async with`.

        Raises:
            AcquireTimeout: When awaited, as `acquire`.
            Refused: When awaited, as `acquire`.
            TypeError: At once, where the costs are no mapping.
            ValueError: At once, where the timeout is negative.
        """
        check_costs(costs)
        check_timeout(timeout)
        return Acquisition(lambda: self._begin(costs, timeout, heartbeat))

    def __getitem__(self, index: int) -> Limits:
        """Gives the set at a place; from the last one back where that is negative.

        Args:
            index: The place: an integer, since sets of several segments may have the same name.

        Returns:
            The set.

        Raises:
            IndexError: There are not so many.
            TypeError: It is no integer.
        """
        return self.members[operator.index(index)]

    def __iter__(self) -> Iterator[Limits]:
        return iter(self.members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_of, (self.members, self.strategy, self.failover, self.worker_index)


def _made_of(members: Sequence[Limits], strategy: Any, failover: bool, worker_index: int | None) -> Pool:
    return Pool(members, strategy, failover=failover, worker_index=worker_index)
