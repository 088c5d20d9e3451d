"""Pools: choosing among several sets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from shmlimit import _native
from shmlimit._acquisition import Acquisition, admitted

if TYPE_CHECKING:
    from shmlimit._by_arguments import Costs
    from shmlimit._limits import Limits


class Pool(_native.Pool):
    """A chooser over several sets (regions, accounts, endpoints), of this process alone.

    The permit carries the name and the metadata of the set that was chosen. Pickled, a pool is its definition: where
    it arrives, it begins anew.

    Attributes:
        members: The sets.
        strategy: How it chooses.
        failover: Whether it asks the next set where one refuses.
    """

    __slots__ = ("failover", "members", "strategy")

    members: tuple[Limits, ...]
    strategy: str
    failover: bool

    def __init__(
        self,
        members: Sequence[Limits],
        strategy: Literal["round_robin", "random", "least_loaded"] = "round_robin",
        *,
        failover: bool = False,
    ) -> None:
        self.members = tuple(members)
        self.strategy = strategy
        self.failover = failover

    def acquire(self, costs: Costs | None = None, *, timeout: float | timedelta | None = None) -> _native.Permit:
        """Chooses a set and waits in its line. With failover, every set is first asked without waiting.

        Args:
            costs: What to take of each limit.
            timeout: Seconds to wait at most; as long as it takes unless given.

        Returns:
            The permit.

        Raises:
            AcquireTimeout: Time was up.
            Refused: The line is full.
            RequestError: No waiting could help.
        """
        return admitted(self._acquire(costs, timeout))

    def acquire_async(self, costs: Costs | None = None, *, timeout: float | timedelta | None = None) -> Acquisition:
        """As `acquire`, for a task of asyncio or trio.

        Args:
            costs: What to take of each limit.
            timeout: Seconds to wait at most, from when it is awaited or entered on.

        Returns:
            What can be awaited, for the permit, or entered by `async with`.

        Raises:
            AcquireTimeout: When awaited, as `acquire`.
            Refused: When awaited, as `acquire`.
        """
        return Acquisition(lambda: self._begin(costs, timeout))

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_of, (self.members, self.strategy, self.failover)


def _made_of(members: Sequence[Limits], strategy: Any, failover: bool) -> Pool:
    return Pool(members, strategy, failover=failover)
