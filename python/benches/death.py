"""Draws a death and the hand-over on a time line, from a real run.

    python python/benches/death.py --picture docs/images/death.svg [--rounds 11]

A process holds the only place of a limit, and two others wait for it in the queue. The first is killed with SIGKILL. Of
several rounds, the picture shows the one with the median time from SIGKILL to the admission of the next process.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import select
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import chart

import shmlimit as sl

DECLARED = sl.LimitSet("jobs", [sl.Concurrency("running", 1)])
WORK = 0.003  # seconds for which the first waiter keeps the place
LEFT, WIDTH, TOP, ROW_HEIGHT = 90.0, 840.0, 54, 36
HOLDS, WAITS = "#15803d", "#c2410c"


@dataclass(frozen=True)
class Run:
    """What happened, in milliseconds since SIGKILL."""

    ended: float  # as a process sees that only polls a descriptor of it
    admitted: float
    released: float
    next_admitted: float


def hold(line: Connection, path: Path, seconds: float) -> None:
    """The main function of each process: sends when it got the place, and when it begins to give it back."""
    jobs = sl.open(path)["jobs"]
    line.send("opened")
    with jobs.acquire(timeout=60):
        line.send(time.monotonic_ns())
        time.sleep(seconds)
        released = time.monotonic_ns()
    line.send(released)


def run(path: Path) -> Run:
    """One death."""
    segment = sl.open(path, DECLARED)
    context = multiprocessing.get_context("spawn")
    processes, lines = [], []
    for seconds in (3600, WORK, 0):
        line, its_end = context.Pipe()
        process = context.Process(target=hold, args=(its_end, path, seconds), daemon=True)
        process.start()
        assert line.recv() == "opened"
        if processes:
            while len(segment.snapshot()["sets"][0]["tickets"]) < len(processes):
                time.sleep(0.001)
        else:
            line.recv()
        processes.append(process)
        lines.append(line)
    holder = processes[0].pid
    assert holder is not None
    watch = os.pidfd_open(holder)
    killed = time.monotonic_ns()
    os.kill(holder, signal.SIGKILL)
    select.select([watch], [], [])
    ended = time.monotonic_ns()
    admitted, released, next_admitted = lines[1].recv(), lines[1].recv(), lines[2].recv()
    os.close(watch)
    for process in processes:
        process.join()
    [counted] = segment.snapshot()["sets"]
    assert counted["counts"]["reclaimed"] == 1, "the place of the killed process was given back, and nothing else"
    return Run(*((at - killed) / 1e6 for at in (ended, admitted, released, next_admitted)))


def picture(shown: Run) -> str:
    """The processes below each other, over milliseconds."""
    begin, end = -2.0, float(math.ceil(shown.next_admitted) + 2)

    def x(at: float) -> float:
        return LEFT + WIDTH * (at - begin) / (end - begin)

    def bar(row: int, since: float, until: float, colour: str) -> str:
        y = TOP + row * ROW_HEIGHT
        return (
            f'<rect x="{x(since):.1f}" y="{y}" width="{x(until) - x(since):.1f}" height="20" '
            f'fill="{colour}" fill-opacity="0.6"/>'
        )

    bottom = TOP + 3 * ROW_HEIGHT
    lines = [
        f'<text x="{LEFT - 8:g}" y="{TOP + 14 + row * ROW_HEIGHT}" text-anchor="end">process {row + 1}</text>'
        for row in range(3)
    ]
    lines += [
        bar(0, begin, 0, HOLDS),
        bar(1, begin, shown.admitted, WAITS),
        bar(1, shown.admitted, shown.released, HOLDS),
        bar(2, begin, shown.next_admitted, WAITS),
        bar(2, shown.next_admitted, end, HOLDS),
    ]
    # Those that are close to each other are named at different heights.
    events = [
        (0.0, 44, "SIGKILL"),
        (shown.ended, 14, f"a bare poll sees the end: {shown.ended:.1f} ms"),
        (shown.admitted, 29, f"process 2 has the place: {shown.admitted:.1f} ms"),
        (shown.next_admitted, 44, f"process 3 has it: {shown.next_admitted:.1f} ms"),
    ]
    for at, y, event in events:
        side, anchor = (-4, "end") if x(at) > LEFT + WIDTH / 2 else (4, "start")
        lines.append(f'<path d="M{x(at):.1f} {y - 10}V{bottom}" stroke="#888" stroke-dasharray="3 3"/>')
        lines.append(f'<text x="{x(at) + side:.1f}" y="{y}" text-anchor="{anchor}">{event}</text>')
    step = max(1, round((end - begin) / 10))
    for at in range(0, int(end) + 1, step):
        lines.append(f'<text x="{x(at):.1f}" y="{bottom + 16}" text-anchor="middle">{at} ms</text>')
    for left, colour, meaning in ((LEFT, HOLDS, "has the place"), (LEFT + 150, WAITS, "waits in the queue, asleep")):
        lines.append(f'<path d="M{left:g} {bottom + 36}h24" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{left + 30:g}" y="{bottom + 40}">{meaning}</text>')
    return chart.picture(960, bottom + 50, lines)


def main() -> None:
    """Runs it several times, prints each, and draws the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, required=True, help="where to draw it")
    parser.add_argument("--rounds", type=int, default=11, help="how many to choose the median from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        runs = [run(Path(directory) / f"{number}.limits") for number in range(arguments.rounds)]
    runs.sort(key=lambda each: each.admitted)
    for each in runs:
        print(each)
    arguments.picture.write_text(picture(runs[len(runs) // 2]))


if __name__ == "__main__":
    main()
