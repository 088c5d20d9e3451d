"""How long a decision takes here and in other libraries, in one run, with ratios.

    python python/benches/compare.py [--rounds 15]

Each round measures every contender once, in turn, so that whatever disturbs the machine disturbs all of them;
the medians over the rounds are shown, their ratios, and the time within which the fastest tenth of the rounds
was. With two processes, both make decisions on the same limit at once, and the time is that of the whole by
the number of all decisions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contenders import KEYED, ONE, REFUSED, THREE, Contender, Operation, contenders

# Long enough to be measured well, short enough for many rounds.
SECONDS_EACH = 0.03

Times = dict[tuple[str, str], list[float]]


def seconds_of(operation: Operation, count: int) -> float:
    """How long so many calls take."""
    turns = range(count)
    begun = time.perf_counter()
    for _ in turns:
        operation()
    return time.perf_counter() - begun


def fitting_count(operation: Operation) -> int:
    """How many calls take about as long as one measurement should."""
    count = 1
    # The best of three, since a process that is put aside for a moment looks like an operation that takes
    # long.
    while (took := min(seconds_of(operation, count) for _ in range(3))) < SECONDS_EACH / 4:
        count *= 2
    return max(1, int(count * SECONDS_EACH / took))


def seconds_of_two_processes(operation: Operation, count: int) -> float:
    """How long it takes until this process and a forked one have both made so many calls at the same time."""
    context: Any = multiprocessing.get_context("fork")
    start, done = context.Barrier(2), context.Barrier(2)
    other = context.Process(target=call_between, args=(operation, count, start, done))
    other.start()
    start.wait()
    begun = time.perf_counter()
    seconds_of(operation, count)
    done.wait()
    took = time.perf_counter() - begun
    other.join()
    return took


def call_between(operation: Operation, count: int, start: Any, done: Any) -> None:
    """The other process: calls between two barriers, once it has connected to whatever it needs."""
    operation()
    start.wait()
    seconds_of(operation, count)
    done.wait()


def measure(everyone: list[Contender], rounds: int) -> tuple[Times, Times]:
    """Nanoseconds of each decision by case and contender, for one process and for two."""
    alone: Times = defaultdict(list)
    together: Times = defaultdict(list)
    counts = {
        (case, contender.name): fitting_count(operation)
        for contender in everyone
        for case, operation in contender.operations.items()
    }
    for _ in range(rounds):
        for contender in everyone:
            for case, operation in contender.operations.items():
                name, count = (case, contender.name), counts[case, contender.name]
                alone[name].append(seconds_of(operation, count) / count * 1e9)
                if contender.shared:
                    took = seconds_of_two_processes(operation, count)
                    together[name].append(took / (2 * count) * 1e9)
    return alone, together


def report(title: str, times: Times, everyone: list[Contender]) -> None:
    """One table: medians, how many times those of this package they are, and what a tenth was within."""
    print(f"\n## {title}\n\n| what | by | ns each | ratio | tenth |\n|---|---|---:|---:|---:|")
    for case in (ONE, THREE, KEYED, REFUSED):
        own = statistics.median(times[case, everyone[0].name])
        for contender in everyone:
            if measured := times.get((case, contender.name)):
                median, tenth = statistics.median(measured), sorted(measured)[len(measured) // 10]
                print(f"| {case:9} | {contender.name:30} | {median:12,.0f} | {median / own:10,.1f} | {tenth:12,.0f} |")


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description="Decisions per second, beside other libraries.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with ExitStack() as everything:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        directory = Path(everything.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        everyone = list(contenders(directory, everything))
        alone, together = measure(everyone, rounds)
    report("One process", alone, everyone)
    report("Two processes on the same limits", together, everyone)


if __name__ == "__main__":
    main()
