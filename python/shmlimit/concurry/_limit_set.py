"""Limits that are taken together, all or nothing, by all workers that share them."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import shmlimit

from . import _home
from ._acquisition import Acquisition, BaseLimitSet, LimitSetAcquisition
from ._amounts import check_number, exact_cost
from ._constants import ExecutionMode, PollingAlgorithm
from ._limits import Amount, CallLimit, Limit, RateLimit, ResourceLimit
from ._making import note_making

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

# How long to pause if the queue is full: it is bounded, but Concurry's number of waiters is not.
_LINE_FULL_PAUSE = 0.01

# Attributes of a set that are not pickled.
_OWN = frozenset({"_open", "_by_key", "_decimals", "_warned", "_opening"})


class ShmLimitSet(BaseLimitSet):
    """Takes several limits in one step.

    Attributes of a subclass are pickled, too.

    Args:
        limits: The limits; without any, everything is admitted.
        shared: Whether every process that gets this object, by fork or by pickle, shares its limits. If not, each
            process has its own.
        mode: The kind of workers. Any mode works for any worker; as in Concurry, `"process"` and `"ray"` need
            `shared=True`.
        config: What acquisitions should carry, such as a region. Each has a copy.
        mp_context: Accepted for compatibility; workers may be started in any way.
        polling: Accepted for compatibility; waiters are woken, and do not poll.
        path: The segment's file, for unrelated programs that share limits by name; it outlives them. By default, a
            file in shared memory that is removed with the set of the last process.
        name: The set's name in the segment.

    Raises:
        ValueError: Two limits have the same key, a private set is to be used across processes, or the segment at
            `path` has limits that cannot be changed to these. Different capacities and windows are not an error: they
            are put into force for all programs that have the segment open.

    Attributes:
        limits: The limits.
        shared: Whether they are shared.
        config: The configuration.
        mode: The mode.
        mp_context: As given.
        name: The set's name.
        path: The segment's file; None if only this process can reach it, or if there are no limits.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        shared: bool = False,
        mode: ExecutionMode | str = ExecutionMode.Sync,
        config: dict[str, Any] | None = None,
        mp_context: str | None = None,
        *,
        polling: PollingAlgorithm | str | None = None,
        path: str | os.PathLike[str] | None = None,
        name: str = "limits",
    ) -> None:
        self.limits = list(limits)
        self.shared = shared
        self.mode = ExecutionMode(mode)
        self.config: dict[str, Any] = {} if config is None else config
        self.mp_context = mp_context
        self.polling = None if polling is None else PollingAlgorithm(polling)
        self.name = name
        self.path = None if path is None else os.path.abspath(path)
        note_making()
        self._open: shmlimit.SetHandle | None = None
        self._check_mode()
        self._index()
        if not self.limits:
            self.path = None
        elif self.path is not None:
            self._open = _home.open_named(self.path, self._declaration())
        elif shared:
            self.path, self._open = _home.open_new(self, self._declaration())
        else:
            _, self._open = _home.open_new(self, self._declaration())

    def acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Takes what is requested, waiting in the queue for it.

        Args:
            requested: Amounts by limit. Call and resource limits that are not named are taken once; rate limits that
                are not named are left out. If nothing is requested, one is taken of each limit, unless one is a rate
                limit. Unknown keys are skipped, with one warning each.
            timeout: Seconds to wait at most; by default as long as it takes.

        Returns:
            The acquisition.

        Raises:
            TimeoutError: The time was up.
            TypeError: An amount is not a number.
            ValueError: Waiting could not help: an amount is above a limit's capacity, or negative, or nothing is
                requested and there is a rate limit.
        """
        amounts = self._requested(requested)
        costs = self._costs(amounts)
        # Before anything is taken: this reads the configuration, which may be of the program's own class and may raise.
        acquired = self._acquired(amounts)
        if not costs:
            return acquired
        until = math.inf if timeout is None else time.monotonic() + max(timeout, 0)
        while True:
            try:
                return acquired._under(self._handle().acquire(costs, timeout=_left(until)))
            except shmlimit.Refused as error:
                self._check_waiting(error, until, timeout)
            time.sleep(_LINE_FULL_PAUSE)

    async def async_acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Takes what is requested, waiting in a task of an event loop, in the same queue as every other process.

        Args:
            requested: As for `acquire`.
            timeout: Seconds to wait at most; by default as long as it takes.

        Returns:
            The acquisition.

        Raises:
            TimeoutError: The time was up.
            TypeError: An amount is not a number.
            ValueError: Waiting could not help, as for `acquire`.
        """
        amounts = self._requested(requested)
        costs = self._costs(amounts)
        # Before anything is taken: this reads the configuration, which may be of the program's own class and may raise.
        acquired = self._acquired(amounts)
        if not costs:
            return acquired
        until = math.inf if timeout is None else time.monotonic() + max(timeout, 0)
        while True:
            try:
                permit = await self._handle().acquire_async(costs, timeout=_left(until))
            except shmlimit.Refused as error:
                self._check_waiting(error, until, timeout)
            else:
                return acquired._under(permit)
            await _pause()

    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> LimitSetAcquisition:
        """Takes what is requested if that is possible at once.

        Args:
            requested: As for `acquire`.

        Returns:
            The acquisition. If that was not possible, it is not `successful` and holds nothing.

        Raises:
            TypeError: An amount is not a number.
            ValueError: It is never possible, as for `acquire`.
        """
        amounts = self._requested(requested)
        costs = self._costs(amounts)
        acquired = self._acquired(amounts)
        if not costs:
            return acquired
        answer = self._handle().try_acquire(costs)
        if isinstance(answer, shmlimit.Permit):
            return acquired._under(answer)
        return self._acquired(amounts, successful=False)

    def release_limit_set_acquisition(self, acquisition: LimitSetAcquisition) -> None:
        """Releases an acquisition of this set."""
        acquisition.release()

    def get_stats(self) -> dict[str, dict[str, Any]]:
        """How full each limit is, counting everyone who shares it."""
        return {limit.key: limit.get_stats() for limit in self.limits}

    def remaining_of(self, key: str) -> float:
        """How much of a limit may be taken now."""
        limit = self[key]
        if isinstance(limit, RateLimit) and math.isinf(limit.capacity):
            return math.inf
        remaining = self._handle().peek({key: 0})[key].remaining
        return float(remaining) if isinstance(remaining, Decimal) else remaining

    def __getitem__(self, key: str) -> Limit:
        """Returns the limit with a key.

        Raises:
            KeyError: There is none.
        """
        limit = self._by_key.get(key)
        if limit is None:
            raise KeyError(f"Limit with key '{key}' not found in LimitSet")
        return limit

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        note_making()
        self._open = None
        self._index()
        if not self.limits:
            return
        if self.path is None:
            _, self._open = _home.open_new(self, self._declaration())
        else:
            # Not lazily: the sender may remove the file as soon as this has arrived.
            self._open = _home.attach(self, self.path, self.name)

    def _check_mode(self) -> None:
        if self.mode is ExecutionMode.Auto:
            raise ValueError("a LimitSet's mode cannot be 'auto': say sync, asyncio, thread, process or ray")
        if not self.shared and self.mode in (ExecutionMode.Processes, ExecutionMode.Ray):
            mode = "process" if self.mode is ExecutionMode.Processes else "ray"
            raise ValueError(f"Non-shared LimitSets cannot use mode='{mode}': say shared=True")
        if not self.shared and self.path is not None:
            raise ValueError("a path is there to be shared: say shared=True")

    def _index(self) -> None:
        self._by_key: dict[str, Limit] = {}
        self._decimals: dict[str, int] = {}
        self._warned: set[str] = set()
        self._opening = threading.Lock()
        for limit in self.limits:
            if not isinstance(limit, Limit):
                raise TypeError(f"a LimitSet takes limits, not {type(limit).__name__}")
            if limit.key in self._by_key:
                raise ValueError(f"Duplicate limit key: '{limit.key}'")
            self._by_key[limit.key] = limit
            self._decimals[limit.key] = _home.decimals(limit)
            limit._belongs_to(self)
        if not self.shared:
            _private_sets.add(self)

    def _declaration(self) -> shmlimit.LimitSet:
        return _home.declaration(self.name, self.limits)

    def _handle(self) -> shmlimit.SetHandle:
        handle = self._open
        if handle is not None:
            return handle
        with self._opening:
            if self._open is None:
                _, self._open = _home.open_new(self, self._declaration())
            return self._open

    def _leave(self) -> None:
        # In a forked child, which does not share the parent's private limits.
        self._open = None
        self._opening = threading.Lock()

    def _requested(self, requested: Mapping[str, Amount] | None) -> dict[str, Amount]:
        """Everything that a request takes, checked."""
        amounts: dict[str, Amount] = {}
        for key, amount in (requested or {}).items():
            if key in self._by_key:
                amounts[key] = amount
            elif self.limits:
                self._warn_of(key)
        for limit in self.limits:
            if limit.key in amounts:
                continue
            if isinstance(limit, (CallLimit, ResourceLimit)):
                amounts[limit.key] = 1
            elif not requested:
                raise ValueError(
                    f"Must specify requested amount for RateLimit '{limit.key}'. "
                    "RateLimits require explicit token amounts."
                )
        for key, amount in amounts.items():
            number = check_number(amount, key)
            capacity: float = self._by_key[key].capacity  # type: ignore[attr-defined]
            if number > capacity:
                raise ValueError(
                    f"Requested amount ({number}) exceeds capacity ({capacity}) for limit '{key}'. "
                    "This request can never be fulfilled. Request less, or declare more."
                )
        return amounts

    def _costs(self, amounts: Mapping[str, Amount]) -> dict[str, int | Decimal]:
        costs: dict[str, int | Decimal] = {}
        for key, amount in amounts.items():
            if type(amount) is int:
                costs[key] = amount
                continue
            number = check_number(amount, key)
            limit = self._by_key[key]
            if number != int(number) and not _home.takes_fractions(limit):
                error = TypeError if isinstance(limit, ResourceLimit) else ValueError
                raise error(f"limit {key!r} requires an integer token count; got fractional value {number}")
            costs[key] = exact_cost(number, self._decimals[key])
        return costs

    def _warn_of(self, key: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(
                "Unknown limit key '%s' in acquisition request. This key will be ignored. Available limit keys: %s",
                key,
                list(self._by_key),
            )

    def _acquired(self, amounts: Mapping[str, Amount], *, successful: bool = True) -> LimitSetAcquisition:
        parts = {key: Acquisition(self._by_key[key], amount, successful) for key, amount in amounts.items()}
        return LimitSetAcquisition(self, parts, successful, self.config)

    def _check_waiting(self, error: shmlimit.Refused, until: float, timeout: float | None) -> None:
        """Returns if the queue was full and there is time for another try; otherwise raises."""
        line_full = error.reason == "queue_full"
        if isinstance(error, shmlimit.AcquireTimeout) or (line_full and time.monotonic() >= until):
            raise TimeoutError(f"Failed to acquire all limits within {timeout}s") from error
        if not line_full:
            raise error


class InMemorySharedLimitSet(ShmLimitSet):
    """The class of `LimitSet`s for sync, thread and asyncio workers. Any worker can use it.

    Args:
        limits: The limits.
        shared: Whether every process that gets the set shares its limits.
        config: What acquisitions should carry.
    """

    def __init__(
        self, limits: Sequence[Limit], shared: bool, config: dict[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(limits, shared, config=config, **more)


class MultiprocessSharedLimitSet(ShmLimitSet):
    """The class of `LimitSet`s for process workers. Any worker can use it.

    Args:
        limits: The limits.
        shared: Must be `True`.
        config: What acquisitions should carry.
        mp_context: Accepted for compatibility.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        shared: bool = True,
        config: dict[str, Any] | None = None,
        mp_context: str | None = None,
        **more: Any,
    ) -> None:
        more.setdefault("mode", ExecutionMode.Processes)
        super().__init__(limits, shared, config=config, mp_context=mp_context, **more)


class RaySharedLimitSet(ShmLimitSet):
    """The class of `LimitSet`s for the Ray workers of one node. Any worker can use it, and Ray need not be running.

    Args:
        limits: The limits.
        shared: Must be `True`.
        config: What acquisitions should carry.
    """

    def __init__(
        self, limits: Sequence[Limit], shared: bool = True, config: dict[str, Any] | None = None, **more: Any
    ) -> None:
        more.setdefault("mode", ExecutionMode.Ray)
        super().__init__(limits, shared, config=config, **more)


_CLASSES: dict[ExecutionMode, type[ShmLimitSet]] = {
    ExecutionMode.Processes: MultiprocessSharedLimitSet,
    ExecutionMode.Ray: RaySharedLimitSet,
}


class NoOpLimitSet(ShmLimitSet):
    """A set without limits, which admits everything.

    Args:
        shared: Accepted for compatibility.
        config: What acquisitions should carry.
    """

    def __init__(self, shared: bool = True, config: dict[str, Any] | None = None) -> None:
        super().__init__([], shared=shared, config=config)


def LimitSet(  # noqa: N802 - a function of that name, as in Concurry
    limits: Sequence[Limit],
    shared: bool = False,
    mode: ExecutionMode | str = ExecutionMode.Sync,
    config: dict[str, Any] | None = None,
    mp_context: str | None = None,
    *,
    polling: PollingAlgorithm | str | None = None,
    path: str | os.PathLike[str] | None = None,
    name: str = "limits",
) -> ShmLimitSet:
    """Makes a set of limits, with the arguments of `ShmLimitSet`, of the class that Concurry uses for the mode.

    All these classes behave alike. Without limits, the set is a `NoOpLimitSet`.

    Args:
        limits: The limits.
        shared: Whether every process that gets the set shares its limits.
        mode: The kind of workers.
        config: What acquisitions should carry.
        mp_context: Accepted for compatibility.
        polling: Accepted for compatibility.
        path: The segment's file.
        name: The set's name in the segment.

    Returns:
        The set.

    Raises:
        ValueError: As for `ShmLimitSet`.
    """
    members, chosen = list(limits), ExecutionMode(mode)
    if not members:
        ShmLimitSet((), shared, chosen, polling=polling, path=path, name=name)
        return NoOpLimitSet(shared=shared, config=config)
    made_of = _CLASSES.get(chosen, InMemorySharedLimitSet)
    options: dict[str, Any] = {"mp_context": mp_context, "polling": polling, "path": path, "name": name}
    return made_of(members, shared, config=config, mode=chosen, **options)


def _left(until: float) -> float | None:
    return None if math.isinf(until) else max(until - time.monotonic(), 0)


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(_LINE_FULL_PAUSE)


_private_sets: weakref.WeakSet[ShmLimitSet] = weakref.WeakSet()


def _leave_private_sets() -> None:
    for private in list(_private_sets):
        private._leave()


os.register_at_fork(after_in_child=_leave_private_sets)
