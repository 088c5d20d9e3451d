"""Requests and tokens per minute for each entity and operation: the usual class, and these limits.

python python/examples/moving/from_entity_buckets.py

The class is how such limiters are commonly written: it looks at each bucket in turn, and charges as it goes.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time

import shmlimit as sl

LIMITS = {"requests": 10, "tokens": 1000}


class BucketLimiter:
    """Buckets of a minute by entity, operation and kind."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str, str], tuple[float, int]] = {}

    def check_rate(self, entity: str, operation: str, costs: dict[str, int]) -> bool:
        """Charges every bucket, or finds one without room."""
        for kind, cost in costs.items():
            key = entity, operation, kind
            began, used = self._used.get(key, (time.monotonic(), 0))
            if time.monotonic() - began >= 60:
                began, used = time.monotonic(), 0
            if used + cost > LIMITS[kind]:
                return False  # What earlier buckets were charged stays charged.
            time.sleep(0)  # Another thread may look now, and see the same.
            self._used[key] = began, used + cost
        return True


class SharedLimiter:
    """The same calls, over a segment: a set is an operation, a key an entity, a limit a bucket."""

    def __init__(self, path: str) -> None:
        limits = [sl.Calls("requests", LIMITS["requests"], 60, algorithm="sliding_window")]
        limits += [sl.Rate("tokens", LIMITS["tokens"], 60, algorithm="sliding_window")]  # type: ignore[list-item]
        self._segment = sl.open(path, [sl.LimitSet(name, limits, keyed=4_000) for name in ("chat", "embed")])

    def check_rate(self, entity: str, operation: str, costs: dict[str, int]) -> bool:
        """Takes all of it, or nothing."""
        return bool(self._segment[operation].check(costs, key=entity))

    def check_and_wait(self, entity: str, operation: str, costs: dict[str, int], max_wait: float) -> bool:
        """Like `check_rate`, but waits in the queue."""
        try:
            self._segment[operation].acquire(costs, key=entity, timeout=max_wait).release()
        except sl.AcquireTimeout:
            return False
        return True


def admitted_by_threads(limiter: BucketLimiter | SharedLimiter) -> int:
    """How many of 400 requests from 20 threads at once are admitted, where 10 may be."""
    admitted: list[bool] = []
    start = threading.Barrier(20)

    def ask() -> None:
        start.wait()
        admitted.extend(limiter.check_rate("acme", "chat", {"requests": 1, "tokens": 1}) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(admitted)


def main() -> None:
    """Shows where they differ."""
    with tempfile.TemporaryDirectory() as directory:
        limiters: list[tuple[str, BucketLimiter | SharedLimiter]] = [
            ("the class", BucketLimiter()),
            ("shmlimit", SharedLimiter(os.path.join(directory, "gateway.limits"))),
        ]
        for name, limiter in limiters:
            limiter.check_rate("beta", "embed", {"requests": 1, "tokens": 1000})
            for _ in range(10):
                assert not limiter.check_rate("beta", "embed", {"requests": 1, "tokens": 1000})
            after_refusals = limiter.check_rate("beta", "embed", {"requests": 1, "tokens": 0})
            print(f"{name:9} requests left after ten refusals for want of tokens: {after_refusals}")
            print(f"{name:9} admitted of 10 with 20 threads at once: {admitted_by_threads(limiter)}")
        shared = limiters[1][1]
        assert isinstance(shared, SharedLimiter)
        print("shmlimit  check_and_wait:", shared.check_and_wait("acme", "chat", {"requests": 1, "tokens": 1}, 0.1))


if __name__ == "__main__":
    main()
