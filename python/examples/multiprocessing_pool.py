"""One limit for multiprocessing.Pool, with handles passed as arguments or by an initializer, under each start method.

python python/examples/multiprocessing_pool.py
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile

import shmlimit as sl

limits_of_this_process: sl.SetHandle


def take_by_argument(limits: sl.SetHandle, _turn: int) -> bool:
    """Take one of what is left; the handle came as an argument, and was opened again in this process."""
    return bool(limits.check())


def remember(limits: sl.SetHandle) -> None:
    """Keep the handle: run once in each worker."""
    global limits_of_this_process
    limits_of_this_process = limits


def take_by_initializer(_turn: int) -> bool:
    """Take one of what is left, by the handle that this worker keeps."""
    return bool(limits_of_this_process.check())


def main() -> None:
    """Ask two hundred times under each start method, where twelve are allowed."""
    limits = sl.LimitSet("calls", [sl.Calls("started", 12, "1h", algorithm="fixed_window", align="first_use")])
    with tempfile.TemporaryDirectory() as directory:
        calls = sl.open(os.path.join(directory, "calls.limits"), config=limits)["calls"]
        for method in ("fork", "spawn", "forkserver"):
            calls.reset()
            context = multiprocessing.get_context(method)
            with context.Pool(4) as pool:
                answers = pool.starmap(take_by_argument, [(calls, turn) for turn in range(100)])
            with context.Pool(4, initializer=remember, initargs=(calls,)) as pool:
                answers += pool.map(take_by_initializer, range(100))
            print(f"{method}: {sum(answers)} of {len(answers)} were admitted")


if __name__ == "__main__":
    main()
