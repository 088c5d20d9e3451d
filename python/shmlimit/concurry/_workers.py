"""Concurry's workers take the limits of this package, in every mode.

Concurry turns what `Worker.options(limits=...)` is given into a pool for each worker, in one function. What is of this
package is taken care of before that function sees it.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ._limit_pool import LimitPool
    from ._limit_set import ShmLimitSet

_BASE = "concurry.core.worker.base_worker"
_SETS = "concurry.core.limit.limit_set"
# Both have the function by name.
_WORKERS = (_BASE, "concurry.core.worker.worker_pool")
_FUNCTION = "_transform_worker_limits"


def connect_workers() -> None:
    """Makes the workers of Concurry, where it is imported already, take sets, lists of sets and pools of this package.

    That is done when this package is imported, when a set or pool is made, and when something of Concurry is imported
    from here. Call it where Concurry is imported by its own name after all that. More than once does nothing more.
    """
    from ._limit_set import ShmLimitSet

    sets = sys.modules.get(_SETS)
    if sets is not None and hasattr(sets, "BaseLimitSet"):
        sets.BaseLimitSet.register(ShmLimitSet)
    for name in _WORKERS:
        module = sys.modules.get(name)
        # Half imported, it has no such function yet.
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
    """The pool that one worker has, or from which each worker of a pool gets its own; None of what is not of here."""
    from ._limit_pool import LimitPool
    from ._limit_set import LimitSet, ShmLimitSet
    from ._limits import Limit

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
    """A set of one worker's own, as is declared by one that is not shared."""
    from ._limit_set import LimitSet

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
