"""What `get_stats` returns: how full a limit is, in Concurry's terms."""

from __future__ import annotations

from typing import Any

from ._constants import RateLimitAlgorithm

_NAMES = {
    RateLimitAlgorithm.TokenBucket: "token_bucket",
    RateLimitAlgorithm.LeakyBucket: "leaky_bucket",
    RateLimitAlgorithm.SlidingWindow: "sliding_window",
    RateLimitAlgorithm.FixedWindow: "fixed_window",
    RateLimitAlgorithm.GCRA: "gcra",
}


def rate_statistics(
    *, key: str, algorithm: RateLimitAlgorithm, capacity: float, window: float, remaining: float
) -> dict[str, Any]:
    """The statistics of a rate limit that has `remaining` left now."""
    taken = 0.0 if remaining == capacity else capacity - remaining
    statistics: dict[str, Any] = {
        "key": key,
        "algorithm": _NAMES[algorithm],
        "capacity": capacity,
        "window": window,
        "window_seconds": window,
        "utilization": taken / capacity,
    }
    per_second = capacity / window
    if algorithm is RateLimitAlgorithm.LeakyBucket:
        statistics |= {"queue_size": taken, "max_rate": per_second}
    elif algorithm in (RateLimitAlgorithm.SlidingWindow, RateLimitAlgorithm.FixedWindow):
        statistics |= {"current_requests": taken, "available": remaining, "max_rate": capacity}
    else:
        statistics |= {"available_tokens": remaining, "max_rate": per_second}
    if algorithm is RateLimitAlgorithm.GCRA:
        statistics["emission_interval"] = 1 / per_second
    return statistics


def resource_statistics(*, key: str, capacity: int, free: int) -> dict[str, Any]:
    """The statistics of a resource that has `free` left now."""
    taken = capacity - free
    return {
        "key": key,
        "capacity": capacity,
        "current_usage": taken,
        "available": free,
        "utilization": taken / capacity,
    }
