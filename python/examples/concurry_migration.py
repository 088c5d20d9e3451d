"""A program written for Concurry, moved to shared memory by its import line.

Run it with: python python/examples/concurry_migration.py

4 worker processes make 10 calls each against a shared limit of 5 per hour. Then one of them is killed in the middle of
its work, and what it held comes back. The first import line is all that was changed: it was `from concurry import ...`.
"""

import multiprocessing
import os
import signal

from shmlimit.concurry import CallLimit, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit


def attempt_calls(limits: LimitSet, attempts: int) -> int:
    """Makes the calls that the limits admit, and returns how many there were."""
    admitted = 0
    for _ in range(attempts):
        attempt = limits.try_acquire(requested={"tokens": 100})
        if attempt.successful:
            with attempt:
                attempt.update(usage={"tokens": 80})  # the other 20 go back
            admitted += 1
    return admitted


def work_for_ever(limits: LimitSet, ready: "multiprocessing.synchronize.Event") -> None:
    """Holds a connection until it is killed."""
    with limits.acquire(requested={"connections": 2}):
        ready.set()
        signal.pause()


def main() -> None:
    """Shows both."""
    context = multiprocessing.get_context("spawn")
    limits = LimitSet(
        limits=[
            CallLimit(window=3600, capacity=5),
            RateLimit(key="tokens", window=3600, algorithm=RateLimitAlgorithm.TokenBucket, capacity=1000),
        ],
        shared=True,
        mode="process",
    )
    with context.Pool(4) as pool:
        admitted = sum(pool.starmap(attempt_calls, [(limits, 10)] * 4))
    print(f"4 processes, limit 5 per hour: admitted {admitted} of 40 calls")
    print(f"tokens left of 1000: {limits.get_stats()['tokens']['available_tokens']:.0f}")

    connections = LimitSet(limits=[ResourceLimit(key="connections", capacity=2)], shared=True, mode="process")
    ready = context.Event()
    worker = context.Process(target=work_for_ever, args=(connections, ready))
    worker.start()
    ready.wait()
    print(f"a worker holds both connections: {connections.try_acquire().successful=}")
    if worker.pid is not None:
        os.kill(worker.pid, signal.SIGKILL)
    with connections.acquire(requested={"connections": 2}, timeout=30) as acquisition:
        print(f"the worker was killed:           {acquisition.successful=}")
    worker.join()


if __name__ == "__main__":
    main()
