"""Lets Concurry's workers take this package's limits, in every mode.

One function in Concurry turns the `limits` of `Worker.options(limits=...)` into a pool for each worker. A wrapper
around it handles this package's limits first.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

from ._limit_pool import LimitPool
from ._limit_set import LimitSet, ShmLimitSet
from ._limits import Limit
from ._making import on_making

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BASE = "concurry.core.worker.base_worker"
_SETS = "concurry.core.limit.limit_set"
# Both modules have the function in their namespace.
_WORKERS = (_BASE, "concurry.core.worker.worker_pool")
_FUNCTION = "_transform_worker_limits"


def connect_workers() -> None:
    """Makes the workers of an already imported Concurry take this package's sets, lists of sets and pools.

    This happens when this package is imported, when a set or pool is made, and when anything of Concurry is imported
    from here. Call it only if Concurry is imported by its own name after all that. Calling it again is harmless.
    """
    sets = sys.modules.get(_SETS)
    if sets is not None and hasattr(sets, "BaseLimitSet"):
        sets.BaseLimitSet.register(ShmLimitSet)
    for name in _WORKERS:
        module = sys.modules.get(name)
        # A module that is still being imported has no such function yet.
        if module is not None and hasattr(module, _FUNCTION):
            _connect(module)


def _connect(module: ModuleType) -> None:
    original: Callable[..., Any] = getattr(module, _FUNCTION)
    if getattr(original, "of_shmlimit", False):
        return

    @functools.wraps(original)
    def transform(limits: Any, mode: Any, is_pool: bool, worker_index: int = 0) -> Any:
        pool = _for_worker(limits, is_pool, worker_index)
        return original(limits, mode, is_pool, worker_index) if pool is None else pool

    transform.of_shmlimit = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, transform)


def _for_worker(limits: Any, is_pool: bool, worker_index: int) -> LimitPool | None:
    """A worker's pool, or the one from which each worker of several gets its own; None if the limits are not ours."""
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


on_making.append(connect_workers)
