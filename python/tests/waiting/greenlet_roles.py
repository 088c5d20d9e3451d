"""What the processes of test_greenlets do: greenlets of one hub, one of which waits for a place."""

# ruff: noqa: E402, T201
import sys

if sys.argv[1] == "late":
    import shmlimit as sl

    segment = sl.open(sys.argv[2], sl.LimitSet("jobs", [sl.Concurrency("places", 1)]))
    kept = segment["jobs"]

from gevent import monkey

monkey.patch_all()

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import gevent

import shmlimit as sl
from shmlimit import wsgi
from shmlimit.futures import LimitedExecutor

path = sys.argv[2]
keyed = sys.argv[1] == "key"
limits = sl.open(path, sl.LimitSet("jobs", [sl.Concurrency("places", 1)], keyed=10 if keyed else None))["jobs"]


def queued() -> int:
    [described] = sl.open(path).snapshot()["sets"]
    return len(described["tickets"])


def until_queued(count: int) -> None:
    while queued() != count:
        time.sleep(0.001)


def hold_with(acquire: Callable[[], Any]) -> str:
    with acquire():
        return "held"


def executed() -> str:
    with LimitedExecutor(ThreadPoolExecutor(1), limits) as executor:
        return executor.submit(lambda: "held").result()


def served() -> str:
    application = wsgi.LimitMiddleware(lambda *_: [b"held"], limits, timeout=3600)
    body = application({"REQUEST_METHOD": "GET"}, lambda *_: lambda _: None)
    try:
        return b"".join(body).decode()
    finally:
        body.close()  # type: ignore[attr-defined]


waits: dict[str, Callable[[], str]] = {
    "acquire": lambda: hold_with(limits.acquire),
    "late": lambda: hold_with(limits.acquire),
    "key": lambda: hold_with(lambda: limits.acquire(key="one")),
    "labelled": lambda: hold_with(limits.labelled("of a test").acquire),
    "pool": lambda: hold_with(sl.Pool([limits]).acquire),
    "limited": limits.limited(lambda: "held"),
    "wsgi": served,
    "executor": executed,
}


def others_run_while_one_waits() -> None:
    held = limits.acquire(key="one" if keyed else None)
    waiting = [gevent.spawn(waits[sys.argv[1]]) for _ in range(3)]
    # Only runs if the waiting greenlets let it.
    gevent.spawn(lambda: (until_queued(3), held.release())).join()
    gevent.joinall(waiting)
    print([each.value for each in waiting], queued())


def those_that_are_ended_leave_the_queue() -> None:
    with limits.acquire():
        killed = gevent.spawn(limits.acquire)
        until_queued(1)
        killed.kill()
        print(queued(), killed.dead)
        with gevent.Timeout(0.01, False):
            limits.acquire()
        print(queued())
        for timeout in (0, 0.01):
            with suppress(sl.AcquireTimeout):
                limits.acquire(timeout=timeout)
            print(queued())
    with limits.acquire():
        print("held")


def a_forked_child_does_not_take_what_wakes_its_parent() -> None:
    held = limits.acquire()
    waiting = gevent.spawn(waits["acquire"])
    until_queued(1)
    parent = os.getpid()
    if os.fork() == 0:
        # Its hub runs as long as the parent lives, and could see that the parent's wake event is readable.
        while os.getppid() == parent:
            gevent.sleep(0.001)
        os._exit(0)
    held.release()
    waiting.join()
    print(waiting.value)


{
    "ended": those_that_are_ended_leave_the_queue,
    "forked": a_forked_child_does_not_take_what_wakes_its_parent,
}.get(sys.argv[1], others_run_while_one_waits)()
