"""What one call takes, as it stands in a program, beside the library `limits` in memory, in one run.

    python python/benches/calls.py [--rounds 15] [--instructions]

Each round measures every statement once, in turn; the medians over the rounds are shown, and how many times that is in
`limits`, whose `hit` makes the same decision for one process. With --instructions, which needs valgrind: how many user
instructions a call takes, the interpreter's included, as the difference between two runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contenders import PLENTY, WINDOW

import shmlimit as sl

# By the statement: the one of `limits` that it is to be seen beside.
ADMITTED, REFUSED = "limiter.hit(plenty, 'one')", "limiter.hit(never, 'refused')"
STATEMENTS = {
    "one.check()": ADMITTED,
    "one.try_acquire().release()": ADMITTED,
    "with one.try_acquire(): pass": ADMITTED,
    "with one.acquire(): pass": ADMITTED,
    "with one.acquire(timeout=30): pass": ADMITTED,
    "keyed.check(key='tenant-7')": ADMITTED,
    "keyed.try_acquire(key='tenant-7').release()": ADMITTED,
    "places.try_acquire().release()": ADMITTED,
    "with tokens.acquire({'tokens': 100}): pass": ADMITTED,
    "refused.check()": REFUSED,
    "refused.try_acquire()": REFUSED,
}

CALLS = 10_000
CALLS_COUNTED = 2_000


@contextmanager
def names() -> Iterator[dict[str, Any]]:
    """What the statements name: sets of a segment in memory, and what `limits` decides by."""
    calls, never = sl.Calls("calls", PLENTY, WINDOW), sl.Calls("calls", 1, "30d", algorithm="fixed_window")
    sets = [
        sl.LimitSet("one", [calls]),
        sl.LimitSet("keyed", [calls], keyed=1000),
        sl.LimitSet("places", [sl.Concurrency("in_flight", 1000)]),
        sl.LimitSet("tokens", [sl.Rate("tokens", PLENTY, WINDOW)]),
        sl.LimitSet("refused", [never]),
    ]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        segment = sl.open(Path(directory) / "calls.limits", sets)
        segment["refused"].check()
        yield {name: segment[name] for name in segment} | names_of_limits()


def names_of_limits() -> dict[str, Any]:
    """A limiter of `limits` in memory, and two limits; nothing where it is not installed."""
    if importlib.util.find_spec("limits") is None:
        return {}
    from limits import RateLimitItemPerMonth, RateLimitItemPerSecond
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter, never = FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerMonth(1)
    limiter.hit(never, "refused")
    return {"limiter": limiter, "plenty": RateLimitItemPerSecond(PLENTY), "never": never}


def measured(known: dict[str, Any], rounds: int) -> dict[str, float]:
    """Nanoseconds of each statement: the medians over the rounds."""
    statements = [*STATEMENTS, *([ADMITTED, REFUSED] if "limiter" in known else [])]
    timers = {statement: timeit.Timer(statement, globals=known) for statement in statements}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for statement, timer in timers.items():
            times[statement].append(timer.timeit(CALLS) / CALLS * 1e9)
    return {statement: statistics.median(each) for statement, each in times.items()}


def instructions(statement: str) -> int:
    """How many instructions one call takes: what a run with more calls takes more than one with fewer."""
    few, many = (instructions_of_a_run(statement, calls) for calls in (CALLS_COUNTED, 2 * CALLS_COUNTED))
    return round((many - few) / CALLS_COUNTED)


def instructions_of_a_run(statement: str, calls: int) -> int:
    """How many instructions a process takes that makes so many calls."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    role = [sys.executable, __file__, "--calls", str(calls), "--of", statement]
    ran = subprocess.run([*valgrind, *role], capture_output=True, text=True, check=True)
    (collected,) = [line for line in ran.stderr.splitlines() if "Collected :" in line]
    return int(collected.split(":")[1].split()[0])


def report(times: dict[str, float], count: Callable[[str], object] | None) -> None:
    """One table; without a column of what is not counted."""
    columns = ["call", "ns", "limits (memory), ns", "times", *(["instructions"] if count else [])]
    print(f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for statement, beside in STATEMENTS.items():
        own, other = times[statement], times.get(beside)
        ratio = "| " if other is None else f"{other:,.0f} | {other / own:.1f}"
        counted = f" {count(statement)} |" if count else ""
        print(f"| `{statement}` | {own:,.0f} | {ratio} |{counted}")


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description="What one call takes, beside `limits` in memory.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--calls", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--of", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with names() as known:
        if options.of:
            timeit.Timer(options.of, globals=known).timeit(options.calls)
            return
        times = measured(known, options.rounds)
    report(times, instructions if options.instructions else None)


if __name__ == "__main__":
    main()
