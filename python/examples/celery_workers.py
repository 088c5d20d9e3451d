"""A Celery worker with four processes runs at most two tasks at once and ten a second.

    python python/examples/celery_workers.py

It starts the worker itself, with a file as its broker; for an application you would run `celery -A celery_workers
worker`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery  # type: ignore[import-untyped, import-not-found, unused-ignore]

import shmlimit as sl
from shmlimit.celery import limited

DIRECTORY = Path(os.environ.get("EXAMPLE_DIRECTORY") or tempfile.mkdtemp(prefix="celery-workers-"))
(DIRECTORY / "results").mkdir(exist_ok=True)

app = Celery(
    "celery_workers",
    broker=f"sqla+sqlite:///{DIRECTORY}/broker.sqlite",
    backend=f"file://{DIRECTORY}/results",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"connect_args": {"timeout": 60}},
)

segment = sl.open(
    DIRECTORY / "jobs.limits",
    config=sl.LimitSet("jobs", [sl.Concurrency("running", 2), sl.Calls("started", 10, 1.0, burst=2)]),
)


@app.task(name="convert", base=limited(segment["jobs"], timeout=0.2))  # type: ignore[untyped-decorator, misc, unused-ignore]
def convert(picture: int) -> int:
    """Some work. It waits in the queue for a moment, and then leaves its process to others and comes back."""
    time.sleep(0.02)
    return picture * picture


def main() -> None:
    """Send thirty tasks, start a worker, and look at what ran."""
    # Before the worker starts: this broker does not let two processes make the queue at once.
    results = [convert.delay(picture) for picture in range(30)]
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            Path(__file__).stem,
            "worker",
            "--concurrency=4",
            "--loglevel=ERROR",
        ],
        cwd=Path(__file__).parent,
        env={**os.environ, "EXAMPLE_DIRECTORY": str(DIRECTORY)},
        stdout=subprocess.DEVNULL,
    )
    try:
        results[0].get(timeout=60)
        begun = time.monotonic()
        answers = [result.get(timeout=60) for result in results]
        took = time.monotonic() - begun
    finally:
        worker.terminate()
        worker.wait()
    counts = segment.snapshot()["sets"][0]["counts"]
    print(f"{len(answers)} tasks took {took:.2f} s, which is {len(answers) / took:.0f} a second.")
    print(f"The most that ran at once: {counts['active_high_water']}; sent back: {counts['timed_out']}.")


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(DIRECTORY)
