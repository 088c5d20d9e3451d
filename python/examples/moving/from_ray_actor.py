"""A leaky bucket that a Ray actor keeps, and the same bucket without an actor.

python python/examples/moving/from_ray_actor.py

Six calls each, with a bucket of 2 that drains 4 a second: the first two go at once, the others a quarter of a second
apart.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ray  # type: ignore[import-untyped, import-not-found, unused-ignore]

import shmlimit as sl

CAPACITY, RATE, INTERVAL = 2, 4, 1.0
CALLS = 6


class LeakyBucket:
    """The usual actor: callers wait in it until there is room."""

    def __init__(self, capacity: float = 60, rate: float = 1, interval: float = 1) -> None:
        self.capacity, self.rate, self.interval = capacity, rate, interval
        self.amount, self.last = 0.0, time.monotonic()

    async def acquire(self) -> None:
        """Waits until the bucket has room for one more."""
        while True:
            now = time.monotonic()
            self.amount = max(0.0, self.amount - (now - self.last) / self.interval * self.rate)
            self.last = now
            if self.amount + 1 <= self.capacity:
                self.amount += 1
                return
            await asyncio.sleep(self.interval / self.rate)


def timed(acquire: Callable[[], Any]) -> str:
    """When each of the calls could go, in quarters of a second since the first one."""
    instants = []
    for _ in range(CALLS):
        acquire()
        instants.append(time.monotonic())
    return " ".join(f"{(instant - instants[0]) * 4:.1f}" for instant in instants)


def main() -> None:
    """Shows both."""
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 * 1024 * 1024,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        bucket: Any = ray.remote(num_cpus=0.1)(LeakyBucket).remote(CAPACITY, RATE, INTERVAL)
        # Before the first call: the actor starts.
        ray.get(bucket.__ray_ready__.remote())
        print("actor   ", timed(lambda: ray.get(bucket.acquire.remote())))
    finally:
        ray.shutdown()
    with tempfile.TemporaryDirectory() as directory:
        calls = sl.Calls("calls", CAPACITY, rate=RATE, interval=INTERVAL, algorithm="leaky_bucket")
        limits = sl.open(os.path.join(directory, "calls.limits"), sl.LimitSet("api", [calls]))["api"]
        print("shmlimit", timed(limits.acquire))
        print(f"the declaration says: {calls.bound}")


if __name__ == "__main__":
    main()
