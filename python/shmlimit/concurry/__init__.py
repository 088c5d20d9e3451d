"""Concurry's limits over shared memory: the same names and calls, exact across processes.

`from concurry import LimitSet, RateLimit` becomes `from shmlimit.concurry import LimitSet, RateLimit`:

    limits = LimitSet(
        limits=[RateLimit(key="tokens", window=60, capacity=1000), ResourceLimit(key="in_use", capacity=10)],
        shared=True,
        mode="process",
    )
    with limits.acquire(requested={"tokens": 100}) as acquisition:
        acquisition.update(usage={"tokens": 80})

The documentation's page on Concurry lists what differs, and why.
"""

import importlib
from typing import Any

from ._acquisition import Acquisition, BaseLimitSet, LimitSetAcquisition
from ._constants import (
    ExecutionMode,
    LoadBalancingAlgorithm,
    PollingAlgorithm,
    RateLimitAlgorithm,
    RateWindow,
)
from ._limit_pool import LimitPool
from ._limit_set import (
    InMemorySharedLimitSet,
    LimitSet,
    MultiprocessSharedLimitSet,
    NoOpLimitSet,
    RaySharedLimitSet,
    ShmLimitSet,
)
from ._limits import CallLimit, FrozenError, Limit, RateLimit, ResourceLimit
from ._settings import global_config, temp_config
from ._workers import connect_workers

__all__ = [
    "Acquisition",
    "BaseLimitSet",
    "CallLimit",
    "ExecutionMode",
    "FrozenError",
    "InMemorySharedLimitSet",
    "Limit",
    "LimitPool",
    "LimitSet",
    "LimitSetAcquisition",
    "LoadBalancingAlgorithm",
    "MultiprocessSharedLimitSet",
    "NoOpLimitSet",
    "PollingAlgorithm",
    "RateLimit",
    "RateLimitAlgorithm",
    "RateWindow",
    "RaySharedLimitSet",
    "ResourceLimit",
    "ShmLimitSet",
    "connect_workers",
    "global_config",
    "temp_config",
]

connect_workers()


def __getattr__(name: str) -> Any:
    """Forwards other names, such as `Worker`, to Concurry if it is installed."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        concurry = importlib.import_module("concurry")
    except ImportError as error:
        raise AttributeError(f"{name} is not of {__name__}, and concurry, which may have it, is not here") from error
    connect_workers()
    return getattr(concurry, name)
