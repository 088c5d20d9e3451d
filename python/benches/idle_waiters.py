"""What an idle waiter costs, and how soon it is served when the holder is killed.

    python python/benches/idle_waiters.py [--seconds 20] [--rounds 30]

One process holds the only place of a limit, and another waits for it: a thread, a task of asyncio, or `limitctl exec`.
Wakes are voluntary context switches of all threads of the waiting process, as `/proc` counts them. System calls are
those that `strace -f` shows of it, in another stretch of time, because tracing adds switches; without strace they are
left out. Then the holder is killed by SIGKILL, over and over: from just before that to the waiter's having its permit,
on the clock that all processes share; beside it a process that only polls a descriptor of the holder, which is what the
kernel takes to say that a process is dead and to wake another.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import shmlimit as sl

SET = "jobs"
DEADLINE = 60.0

# For what a waiter does once at the beginning: it finds out whose death is to wake it.
SETTLED_AFTER = 2.0


def hold(path: Path) -> None:
    """Holds the place until it is killed."""
    permit = sl.open(path)[SET].acquire()
    signal.pause()
    permit.release()


def wait_in_a_thread(path: Path) -> None:
    """Says when it was admitted."""
    with sl.open(path)[SET].acquire():
        print(time.monotonic_ns(), flush=True)


def wait_in_a_task(path: Path) -> None:
    """As a thread does."""

    async def main() -> None:
        async with sl.open(path)[SET].acquire_async():
            print(time.monotonic_ns(), flush=True)

    asyncio.run(main())


def poll(path: Path) -> None:
    """Says when the process that holds the place was dead."""
    (held,) = sl.open(path).snapshot()["sets"][0]["holds"]
    watched = select.poll()
    watched.register(os.pidfd_open(held["owner_pid"]))
    print("watches", flush=True)
    watched.poll()
    print(time.monotonic_ns(), flush=True)


ROLES: dict[str, Callable[[Path], None]] = {
    "hold": hold,
    "thread": wait_in_a_thread,
    "asyncio": wait_in_a_task,
    "poll": poll,
}


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


@contextmanager
def process(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end, if it has not ended by then."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def held_and_waited_for(path: Path, waiter: str) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """A process that holds the place, and one that waits for it."""
    this = (sys.executable, Path(__file__).resolve(), "--path", path, "--role")
    waits = (
        (Path(sys.executable).parent / "limitctl", "exec", path, SET, "--", "true")
        if waiter == "limitctl exec"
        else (*this, waiter)
    )
    segment = sl.open(path)

    def count(what: str) -> int:
        return len(segment.snapshot()["sets"][0][what])

    with process(*this, "hold") as holder:
        until(lambda: count("holds") == 1, "nothing is held")
        with process(*waits) as waiting:
            if waiter == "poll":
                assert waiting.stdout is not None
                waiting.stdout.readline()
            else:
                until(lambda: count("tickets") == 1, "nothing waits")
            time.sleep(SETTLED_AFTER)
            yield holder, waiting


def statuses(pid: int) -> list[str]:
    """What the kernel says of the threads of a process."""
    return [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")]


def switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep."""
    count = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
    return sum(int(number) for text in statuses(pid) for number in count.findall(text))


def is_traced(pid: int) -> bool:
    """Whether every thread of a process is."""
    return not any("TracerPid:\t0\n" in text for text in statuses(pid))


def system_calls(pid: int, seconds: float) -> int | None:
    """How many system calls a process makes in a time; None where they cannot be counted."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile("r") as output:
        command = [strace, "-f", "-q", "-e", "signal=none", "-o", output.name, "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
            until(lambda: tracer.poll() is not None or is_traced(pid), "strace does not attach")
            if tracer.poll() is not None:
                return None
            # The calls that it has interrupted have been begun again by then.
            time.sleep(SETTLED_AFTER)
            output.read()
            time.sleep(seconds)
            lines = output.readlines()
            tracer.send_signal(signal.SIGINT)
    # A call is one line when it has begun and another when it has ended, where others come between.
    return sum("resumed>" not in line for line in lines)


def idle(path: Path, waiter: str, seconds: float) -> tuple[float, float | None]:
    """Wakes and system calls a second."""
    with held_and_waited_for(path, waiter) as (_, waiting):
        before, began = switches(waiting.pid), time.monotonic()
        time.sleep(seconds)
        wakes = (switches(waiting.pid) - before) / (time.monotonic() - began)
        calls = system_calls(waiting.pid, seconds)
    return wakes, None if calls is None else calls / seconds


def hand_over(path: Path, waiter: str) -> float:
    """Milliseconds from the death of the holder to the admission of the next."""
    with held_and_waited_for(path, waiter) as (holder, waiting):
        killed_at = time.monotonic_ns()
        holder.kill()
        assert waiting.stdout is not None
        admitted_at = int(waiting.stdout.readline())
    return (admitted_at - killed_at) / 1e6


def main() -> None:
    """Prints what was measured, or plays a role in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        ROLES[options.role](options.path)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "bench.limits"
        segment = sl.open(path, sl.LimitSet(SET, [sl.Concurrency("places", 1)]))
        for waiter in ("thread", "asyncio", "limitctl exec"):
            wakes, calls = idle(path, waiter, options.seconds)
            traced = "no strace" if calls is None else f"{calls:.2f} system calls a second"
            if calls is not None and wakes:
                traced += f", {calls / wakes:.1f} a wake"
            print(f"idle, {waiter:<14} {wakes:>6.2f} wakes a second, {traced}")
        took: dict[str, list[float]] = {"thread": [], "asyncio": [], "poll": []}
        # By turns, so that whatever disturbs the machine disturbs all of them.
        for _ in range(options.rounds):
            for waiter, times in took.items():
                times.append(hand_over(path, waiter))
        for waiter, times in took.items():
            print(
                f"killed, {waiter:<12} {statistics.median(times):>6.2f} ms to the next (median), "
                f"{min(times):.2f} to {max(times):.2f} in {options.rounds} rounds"
            )
        segment.close()


if __name__ == "__main__":
    main()
