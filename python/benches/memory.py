"""Whether taking and releasing permits makes a process grow.

    python python/benches/memory.py [--pairs 10000000]

Runs in a process of its own, as the tests do with fewer pairs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import shmlimit as sl

# What the interpreter and the allocator need once, before the first look.
WARMING_UP = 50_000


def resident_bytes() -> int:
    """The memory that this process has in use, by the kernel's count."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("the kernel does not say how large the process is")


def growth(pairs: int) -> int:
    """By how many bytes the process has grown after so many permits were taken, settled and given back."""
    with tempfile.TemporaryDirectory() as directory:
        segment = sl.open(
            Path(directory) / "memory.limits",
            config=[
                sl.LimitSet("model", [sl.Rate("tokens", 10**12, 1), sl.Concurrency("in_flight", 8)], keyed=2000),
                sl.LimitSet("refused", [sl.Concurrency("in_flight", 1)]),
            ],
        )
        held = segment["refused"].acquire()
        repeat(turn_of(segment), min(pairs, WARMING_UP))
        before = resident_bytes()
        repeat(turn_of(segment), pairs)
        grown = resident_bytes() - before
        held.release()
    return grown


def turn_of(segment: sl.Segment) -> Callable[[int], None]:
    """One pair, with a settle and a refusal among every few, as an application would have them."""
    model, refused = segment["model"], segment["refused"]
    keys = [f"tenant-{number}" for number in range(1000)]
    costs = {"tokens": 100}

    def turn(number: int) -> None:
        with model.acquire(costs, key=keys[number % 1000]) as permit:
            if number % 4 == 0:
                permit.settle(tokens=60)
        if number % 16 == 0:
            refused.try_acquire()

    return turn


def repeat(turn: Callable[[int], None], times: int) -> None:
    """Call it so many times."""
    for number in range(times):
        turn(number)


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description="Whether taking and releasing permits makes a process grow.")
    parser.add_argument("--pairs", type=int, default=10_000_000)
    pairs = parser.parse_args().pairs
    print(f"{pairs} pairs of acquire and release: {growth(pairs)} bytes more")


if __name__ == "__main__":
    main()
