"""Ray tasks and actors of one node share a rate and two places, without an actor that hands them out.

python python/examples/ray_actors.py
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import ray  # type: ignore[import-untyped, import-not-found, unused-ignore]

import shmlimit as sl


@ray.remote(num_cpus=0.25)  # type: ignore[untyped-decorator, misc, unused-ignore]
def call(limits: sl.SetHandle) -> int:
    """A task: a handle is pickled as the path of the file and the name of the set."""
    with limits.acquire(timeout=60.0):
        time.sleep(0.1)
    return os.getpid()


class Caller:
    """An actor that keeps its handle."""

    def __init__(self, limits: sl.SetHandle) -> None:
        self.limits = limits

    def call(self) -> int:
        """One call."""
        with self.limits.acquire(timeout=60.0):
            time.sleep(0.1)
        return os.getpid()


def main() -> None:
    """Make forty calls, half of them by two actors."""
    with tempfile.TemporaryDirectory() as directory:
        declared = sl.LimitSet("model", [sl.Concurrency("places", 2), sl.Calls("calls", 20, 1.0, burst=4)])
        segment = sl.open(os.path.join(directory, "model.limits"), config=declared)
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=80 * 1024 * 1024,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        try:
            model = segment["model"]
            actors: list[Any] = [ray.remote(num_cpus=0.25)(Caller).remote(model) for _ in range(2)]
            begun = time.monotonic()
            calls = [call.remote(model) for _ in range(20)] + [actors[n % 2].call.remote() for n in range(20)]
            workers = set(ray.get(calls))
            took = time.monotonic() - begun
        finally:
            ray.shutdown()
        counts = segment.snapshot()["sets"][0]["counts"]
        print(f"{len(calls)} calls in {len(workers)} processes took {took:.2f} s: {40 / took:.0f} a second.")
        print(f"The most that ran at once: {counts['active_high_water']}.")


if __name__ == "__main__":
    main()
