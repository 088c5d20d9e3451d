"""Lets Concurry's workers take this package's limits, in every mode.

One function in Concurry turns the `limits` of `Worker.options(limits=...)` into a pool for each worker. A wrapper
around it handles this package's limits first, as `_limits_of_workers.py` says.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BASE = "concurry.core.worker.base_worker"
_SETS = "concurry.core.limit.limit_set"
# Both modules have the function in their namespace.
_WORKERS = (_BASE, "concurry.core.worker.worker_pool")
_FUNCTION = "_transform_worker_limits"


_ours: list[tuple[type, Callable[[Any, bool, int], Any]]] = []


def take_in_workers(sets: type, pool_for_worker: Callable[[Any, bool, int], Any]) -> None:
    """Says which sets are this package's, and what answers the pool for a worker, or None for limits that are not."""
    _ours.append((sets, pool_for_worker))


def connect_workers() -> None:
    """Makes the workers of an already imported Concurry take this package's sets, lists of sets and pools.

    This happens when this package is imported, when a set or pool is made, and when something of Concurry is imported
    from here. Call it only if Concurry is imported by its own name after all that. Calling it again is harmless.
    """
    for ours, pool_for_worker in _ours:
        sets = sys.modules.get(_SETS)
        if sets is not None and hasattr(sets, "BaseLimitSet"):
            sets.BaseLimitSet.register(ours)
        for name in _WORKERS:
            module = sys.modules.get(name)
            # A module that is still being imported has no such function yet.
            if module is not None and hasattr(module, _FUNCTION):
                _connect(module, pool_for_worker)


def _connect(module: ModuleType, pool_for_worker: Callable[[Any, bool, int], Any]) -> None:
    original: Callable[..., Any] = getattr(module, _FUNCTION)
    if getattr(original, "of_shmlimit", False):
        return

    @functools.wraps(original)
    def transform(limits: Any, mode: Any, is_pool: bool, worker_index: int = 0) -> Any:
        pool = pool_for_worker(limits, is_pool, worker_index)
        return original(limits, mode, is_pool, worker_index) if pool is None else pool

    transform.of_shmlimit = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, transform)
