"""Concurry's workers under a limit of 5 calls, with Concurry's limits and with these.

python python/examples/moving/from_concurry.py

The same program twice: what differs is where the limits are imported from.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from concurry import Worker  # type: ignore[import-untyped, import-not-found, unused-ignore]


class Caller(Worker):  # type: ignore[misc, unused-ignore]
    """Makes the calls that its limits admit."""

    def admitted_of(self, attempts: int) -> int:
        """How many of that many attempts are admitted."""
        admitted = 0
        for _ in range(attempts):
            attempt = self.limits.try_acquire(requested={"tokens": 100})
            if attempt.successful:
                with attempt:
                    attempt.update(usage={"tokens": 80})
                admitted += 1
        return admitted


def play(module: str, mode: str) -> str:
    """How many calls of two workers of that mode are admitted together."""
    library: Any = importlib.import_module(module)
    limits = library.LimitSet(
        limits=[
            library.CallLimit(window=3600, capacity=5),
            library.RateLimit(key="tokens", window=3600, algorithm="TokenBucket", capacity=1000),
        ],
        shared=True,
        mode=mode,
    )
    workers = [Caller.options(mode=mode, limits=limits).init() for _ in range(2)]
    begun = time.perf_counter()
    admitted = [worker.admitted_of(10).result(timeout=60) for worker in workers]
    took = time.perf_counter() - begun
    for worker in workers:
        worker.stop()
    return f"admitted {sum(admitted)} of 20 ({took * 1000:.0f} ms)"


def main() -> None:
    """Shows both, in two modes."""
    for mode in ("thread", "process"):
        for module in ("concurry", "shmlimit.concurry"):
            print(f"{mode:8} {module:18} {play(module, mode)}")


if __name__ == "__main__":
    main()
