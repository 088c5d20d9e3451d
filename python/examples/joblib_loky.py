"""At most two of joblib's workers are in a section at once.

python python/examples/joblib_loky.py
"""

from __future__ import annotations

import os
import tempfile
import time

from joblib import Parallel, delayed  # type: ignore[import-untyped, import-not-found, unused-ignore]

import shmlimit as sl


def query(database: sl.SetHandle, number: int) -> tuple[int, int]:
    """Some work of which only a part needs a place."""
    with database.acquire(timeout=30.0):
        time.sleep(0.01)
    return number * number, os.getpid()


def main() -> None:
    """Run forty queries in four workers."""
    with tempfile.TemporaryDirectory() as directory:
        limits = sl.LimitSet("database", [sl.Concurrency("connections", 2)])
        segment = sl.open(os.path.join(directory, "database.limits"), config=limits)
        answers = Parallel(n_jobs=4, backend="loky")(delayed(query)(segment["database"], n) for n in range(40))
        workers = {pid for _, pid in answers}
        counts = segment.snapshot()["sets"][0]["counts"]
        print(f"{len(answers)} queries ran in {len(workers)} processes.")
        print(f"The most that ran at once: {counts['active_high_water']}.")


if __name__ == "__main__":
    main()
