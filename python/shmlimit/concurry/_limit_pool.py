"""Pools: choosing among several limit sets, separately in each process."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, Any

from ._acquisition import BaseLimitSet, LimitSetAcquisition
from ._constants import LoadBalancingAlgorithm
from ._limits import Amount, FrozenError
from ._making import note_making
from ._settings import global_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Attributes of a pool that are not pickled.
_OWN = frozenset({"_dispatched"})

# Shared by all pools, and held only briefly. A forked child gets a new one, in case another thread held it.
_choosing = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_choosing=threading.Lock()))


class LimitPool:
    """Sends each request to one of several sets, such as one for each account or region.

    Each process chooses by itself; the sets are shared if they are declared so. An unpickled pool starts over.

    Args:
        limit_sets: The sets, at least one: of any class that has the methods of a `BaseLimitSet`.
        load_balancing: Round robin or random; defaults to `global_config.defaults`.
        worker_index: Where the round begins; defaults to `global_config.defaults`.

    Raises:
        ValueError: There is no set, something is not a set, or pools do not support this load balancing.

    Attributes:
        limit_sets: The sets.
        load_balancing: How it chooses.
        worker_index: Where the round begins.
    """

    limit_sets: list[BaseLimitSet]
    load_balancing: LoadBalancingAlgorithm
    worker_index: int
    _dispatched: int

    def __init__(
        self,
        *,
        limit_sets: Sequence[BaseLimitSet],
        load_balancing: LoadBalancingAlgorithm | str | None = None,
        worker_index: int | None = None,
    ) -> None:
        defaults = global_config.defaults
        members = list(limit_sets)
        if not members:
            raise ValueError("LimitPool requires at least one LimitSet")
        for member in members:
            if not isinstance(member, BaseLimitSet):
                raise ValueError(f"a LimitPool takes LimitSets, not {type(member).__name__}")
        chosen = LoadBalancingAlgorithm(
            defaults.limit_pool_load_balancing if load_balancing is None else load_balancing
        )
        if chosen not in (LoadBalancingAlgorithm.RoundRobin, LoadBalancingAlgorithm.Random):
            raise ValueError(
                f"Unsupported load balancing algorithm for LimitPool: {chosen}. Supported: Random, RoundRobin"
            )
        start = defaults.limit_pool_worker_index if worker_index is None else int(worker_index)
        note_making()
        self.__setstate__({"limit_sets": members, "load_balancing": chosen, "worker_index": start})

    def at_worker(self, index: int) -> LimitPool:
        """Returns the pool for a worker of this index: its round begins that many sets further on.

        Args:
            index: The worker's index.

        Returns:
            A pool of the same sets; for index 0, this pool itself.
        """
        if index == 0:
            return self
        copy = object.__new__(type(self))
        copy.__setstate__({**self.__getstate__(), "worker_index": self.worker_index + index})
        return copy

    def acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Chooses a set and acquires from it, like `LimitSet.acquire`."""
        return self._choose().acquire(requested, timeout)

    async def async_acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Chooses a set and acquires from it, like `LimitSet.async_acquire`."""
        return await self._choose().async_acquire(requested, timeout)

    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> LimitSetAcquisition:
        """Chooses a set and tries it, like `LimitSet.try_acquire`. If it refuses, no other is tried."""
        return self._choose().try_acquire(requested)

    def get_stats(self) -> dict[str, Any]:
        """How the pool chooses, how often it has chosen, and the statistics of its sets."""
        chooser: dict[str, Any] = {
            "algorithm": self.load_balancing.value,
            "total_dispatched": self._dispatched,
        }
        if self.load_balancing is LoadBalancingAlgorithm.RoundRobin:
            chooser["offset"] = self.worker_index
        return {
            "num_limit_sets": len(self.limit_sets),
            "load_balancing": self.load_balancing.value,
            "worker_index": self.worker_index,
            "balancer_stats": chooser,
            "limit_sets": [member.get_stats() for member in self.limit_sets],
        }

    def __getitem__(self, index: int) -> BaseLimitSet:
        """Returns the set at an index.

        Raises:
            IndexError: The index is out of range.
            TypeError: The index is not an integer: sets need not have the same keys.
        """
        if not isinstance(index, int):
            raise TypeError(
                f"LimitPool indices must be integers, not {type(index).__name__}: "
                "its LimitSets may have different keys. Write pool[0]['key'] for a limit of one of them."
            )
        return self.limit_sets[index]

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenError("a LimitPool cannot be changed; make another one")

    def __repr__(self) -> str:
        return (
            f"LimitPool(limit_sets={self.limit_sets!r}, load_balancing={self.load_balancing!r}, "
            f"worker_index={self.worker_index!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _dispatched=0)

    def _choose(self) -> BaseLimitSet:
        with _choosing:
            turn = self._dispatched
            vars(self)["_dispatched"] = turn + 1
        if self.load_balancing is LoadBalancingAlgorithm.Random:
            return random.choice(self.limit_sets)
        return self.limit_sets[(self.worker_index + turn) % len(self.limit_sets)]
