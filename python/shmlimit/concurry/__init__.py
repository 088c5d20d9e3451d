"""Concurry's limits over shared memory: the same names and calls, right across processes.

`from concurry import LimitSet, RateLimit` becomes `from shmlimit.concurry import LimitSet, RateLimit`:

    limits = LimitSet(
        limits=[RateLimit(key="tokens", window=60, capacity=1000), ResourceLimit(key="in_use", capacity=10)],
        shared=True,
        mode="process",
    )
    with limits.acquire(requested={"tokens": 100}) as acquisition:
        acquisition.update(usage={"tokens": 80})

What differs, and why, is listed in the documentation's page on Concurry.
"""

from ._acquisition import Acquisition, LimitSetAcquisition
from ._constants import (
    ExecutionMode,
    LoadBalancingAlgorithm,
    PollingAlgorithm,
    RateLimitAlgorithm,
    RateWindow,
)
from ._limit_pool import LimitPool
from ._limit_set import LimitSet, NoOpLimitSet, ShmLimitSet
from ._limits import CallLimit, FrozenError, Limit, RateLimit, ResourceLimit
from ._settings import global_config, temp_config

__all__ = [
    "Acquisition",
    "CallLimit",
    "ExecutionMode",
    "FrozenError",
    "Limit",
    "LimitPool",
    "LimitSet",
    "LimitSetAcquisition",
    "LoadBalancingAlgorithm",
    "NoOpLimitSet",
    "PollingAlgorithm",
    "RateLimit",
    "RateLimitAlgorithm",
    "RateWindow",
    "ResourceLimit",
    "ShmLimitSet",
    "global_config",
    "temp_config",
]
