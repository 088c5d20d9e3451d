"""Which limits a worker of Concurry gets, if they are this package's."""

from __future__ import annotations

import warnings
from typing import Any

from ._limit_pool import LimitPool
from ._limit_set import LimitSet, ShmLimitSet
from ._limits import Limit


def pool_for_worker(limits: Any, is_pool: bool, worker_index: int) -> LimitPool | None:
    """The pool for one worker, or from which each worker of a pool gets its own; None if the limits are not ours."""
    if isinstance(limits, LimitPool):
        return limits.at_worker(worker_index)
    if isinstance(limits, ShmLimitSet):
        return LimitPool(limit_sets=[limits if limits.shared else _own(limits, is_pool)], worker_index=worker_index)
    if not isinstance(limits, (list, tuple)) or not limits:
        return None
    if all(isinstance(each, Limit) for each in limits):
        mode = "process" if is_pool else "sync"
        return LimitPool(limit_sets=[LimitSet(limits, shared=is_pool, mode=mode)], worker_index=worker_index)
    if not any(isinstance(each, ShmLimitSet) for each in limits):
        return None
    if not all(getattr(each, "shared", False) for each in limits):
        raise ValueError(
            "All LimitSets in a list must be shared. Create with: LimitSet(limits=[...], shared=True, mode='...')"
        )
    return LimitPool(limit_sets=limits, worker_index=worker_index)


def _own(limits: ShmLimitSet, is_pool: bool) -> ShmLimitSet:
    """A worker's own set, made from a set that is not shared."""
    if is_pool:
        raise ValueError(
            "WorkerProxyPool requires a shared LimitSet. "
            "Create with: LimitSet(limits=[...], shared=True, mode='...'): its workers would each have their own"
        )
    warnings.warn(
        "Passing non-shared LimitSet to WorkerProxy. The worker has limits of its own, which nothing else counts.",
        UserWarning,
        stacklevel=2,
    )
    return LimitSet(limits.limits, config=limits.config)
