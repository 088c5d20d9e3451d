"""At most two calls at once and twenty a second, over all workers of two process pools.

python python/examples/process_pool.py
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import shmlimit as sl
from shmlimit.futures import LimitedExecutor, current_permit


def fetch(page: int) -> tuple[int, int]:
    """Some work, in a worker process, that needs a place."""
    permit = current_permit()
    assert permit is not None
    time.sleep(0.02)
    return page, os.getpid()


def main() -> None:
    """Send forty calls through two pools of four workers each."""
    limits = sl.LimitSet("pages", [sl.Concurrency("at_once", 2), sl.Calls("started", 20, 1.0, burst=2)])
    with tempfile.TemporaryDirectory() as directory:
        segment = sl.open(os.path.join(directory, "pages.limits"), config=limits)
        begun = time.monotonic()
        with (
            LimitedExecutor(ProcessPoolExecutor(4), segment["pages"]) as first,
            LimitedExecutor(ProcessPoolExecutor(4), segment["pages"]) as second,
        ):
            futures = [pool.submit(fetch, page) for page in range(20) for pool in (first, second)]
            workers = {future.result()[1] for future in futures}
        took = time.monotonic() - begun
        counts = segment.snapshot()["sets"][0]["counts"]
        print(f"{len(futures)} calls in {len(workers)} processes took {took:.2f} s: {40 / took:.0f} a second.")
        print(f"The most that ran at once: {counts['active_high_water']}.")


if __name__ == "__main__":
    main()
