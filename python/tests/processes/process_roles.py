"""What the processes of test_processes do: functions for multiprocessing, and roles for whole processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType

from observing import queued, until

import shmlimit as sl


def say(line: str) -> None:
    """Tell the test, which reads what this process prints."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def try_and_hold(limits: sl.SetHandle, line: Connection) -> None:
    """Try once, say whether it was admitted, and hold until told to go."""
    result = limits.try_acquire()
    line.send((os.getpid(), bool(result)))
    line.recv()
    result.release()


def wait_and_hold(limits: sl.SetHandle, line: Connection) -> None:
    """Wait in the queue for as long as it takes, say so, and hold until told to go."""
    line.send(os.getpid())
    with limits.acquire():
        line.send("admitted")
        line.recv()


def exit_with_waiting_daemon_threads(segment: sl.Segment) -> None:
    limits = segment["jobs"]
    for _ in range(4):
        threading.Thread(target=limits.acquire, daemon=True).start()
    until(lambda: queued(segment, "jobs") == 4, "four threads in the queue")


def exit_with_a_cancelled_asyncio_wait(segment: sl.Segment) -> None:
    async def main() -> None:
        waits = [asyncio.ensure_future(segment["jobs"].acquire_async()) for _ in range(4)]
        await asyncio.to_thread(until, lambda: queued(segment, "jobs") == len(waits), "the tasks in the queue")

    asyncio.run(main())


def exit_with_an_abandoned_asyncio_wait(segment: sl.Segment) -> None:
    async def wait() -> None:
        async with segment["jobs"].acquire_async():
            pass

    async def main() -> None:
        waits.extend(asyncio.ensure_future(wait()) for _ in range(4))
        await asyncio.to_thread(until, lambda: queued(segment, "jobs") == 4, "four tasks in the queue")

    waits: list[asyncio.Future[None]] = []
    # The loop is not closed and its tasks are not cancelled: the interpreter takes them down.
    asyncio.new_event_loop().run_until_complete(main())


def wait_in_the_main_thread(segment: sl.Segment) -> None:
    try:
        segment["jobs"].acquire()
    except KeyboardInterrupt:
        say("interrupted")


def wait_in_every_thread(segment: sl.Segment) -> None:
    limits = segment["jobs"]
    for _ in range(3):
        threading.Thread(target=limits.acquire, daemon=True).start()
    until(lambda: queued(segment, "jobs") == 3, "three threads in the queue")
    wait_in_the_main_thread(segment)


def wait_in_a_decorated_function(segment: sl.Segment) -> None:
    @segment["jobs"].limited(timeout=None)
    def work() -> None:
        say("ran")

    try:
        work()
    except KeyboardInterrupt:
        say("interrupted")


def wait_in_asyncio(segment: sl.Segment) -> None:
    async def wait() -> None:
        async with segment["jobs"].acquire_async():
            say("ran")

    try:
        asyncio.run(wait())
    except KeyboardInterrupt:
        say("interrupted")


def wait_and_handle_sigterm(segment: sl.Segment) -> None:
    def handle(_signal: int, _frame: FrameType | None) -> None:
        say("handled")

    signal.signal(signal.SIGTERM, handle)
    with segment["jobs"].acquire():
        say("admitted")


def wait_for_a_release_by_another_thread(segment: sl.Segment) -> None:
    limits = segment["jobs"]
    permit = limits.acquire(key=None)
    turns = 0

    def release_once_another_waits() -> None:
        nonlocal turns
        until(lambda: queued(segment, "jobs") == 1, "the main thread in the queue")
        # None of this runs unless the waiting thread releases the interpreter.
        for turn in range(100_000):
            turns = turn + 1
        permit.release()

    other = threading.Thread(target=release_once_another_waits)
    other.start()
    limits.acquire(timeout=None).release()
    other.join()
    say(str(turns))


ROLES: dict[str, Callable[[sl.Segment], None]] = {
    role.__name__: role
    for role in [
        exit_with_waiting_daemon_threads,
        exit_with_a_cancelled_asyncio_wait,
        exit_with_an_abandoned_asyncio_wait,
        wait_in_the_main_thread,
        wait_in_every_thread,
        wait_in_a_decorated_function,
        wait_in_asyncio,
        wait_and_handle_sigterm,
        wait_for_a_release_by_another_thread,
    ]
}

if __name__ == "__main__":
    # Under nohup, or in the background of a script, a process inherits SIGINT ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ROLES[sys.argv[1]](sl.open(sys.argv[2]))
