"""What many waiting tasks cost: 10,000 of one event loop in the queue for a limit of 500 a second.

    python python/benches/many_waiters.py [--waiters 10000] [--seconds 5] [--rounds 3]

Shown is how many are served a second once all of them wait, the share of one processor that the whole process takes
meanwhile, and whether they are served in the order in which they came; then the same with every second one cancelled.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import shmlimit as sl

RATE = 500

# Who is late does not lose its turn.
BURST = 10


async def measure(limits: sl.SetHandle, waiters: int, seconds: float, *, cancel: bool) -> tuple[float, float, bool]:
    """Served a second, share of a processor, and whether in order."""
    served: list[int] = []

    async def wait_once(number: int) -> None:
        await limits.acquire_async()
        served.append(number)

    tasks = [asyncio.ensure_future(wait_once(number)) for number in range(waiters)]
    # Each has come to wait when those that were made before this have been run.
    await asyncio.sleep(0.5)
    if cancel:
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0.5)
    before, began, processor = len(served), time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    elapsed, processor = time.monotonic() - began, time.process_time() - processor
    rate = (len(served) - before) / elapsed
    in_order = all(first < second for first, second in pairwise(served[before:]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return rate, processor / elapsed, in_order


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.waiters} waiting tasks, {RATE} a second allowed; medians of {options.rounds} rounds")
    for name, cancel in [("all wait", False), ("every second one is cancelled", True)]:
        measured = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
                declared = sl.LimitSet("set", [sl.Calls("calls", RATE, 1, burst=BURST)], waiters=options.waiters)
                limits = sl.open(Path(directory) / "bench.limits", config=[declared])["set"]
                measured.append(asyncio.run(measure(limits, options.waiters, options.seconds, cancel=cancel)))
        rates, shares, orders = zip(*measured, strict=True)
        print(
            f"{name:<30} {statistics.median(rates):>6.0f}/s  {100 * statistics.median(shares):>5.1f} % of a processor  "
            f"{'in order' if all(orders) else 'not in order'}"
        )


if __name__ == "__main__":
    main()
