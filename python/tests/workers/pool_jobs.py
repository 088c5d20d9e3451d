"""What the workers of pools do in tests: functions that every start method can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import shmlimit as sl
from shmlimit.futures import current_permit

limits_of_this_process: sl.SetHandle


def open_pools(directory: Path, *sets: sl.LimitSet) -> sl.Segment:
    """A segment with a set of two places, and with these sets."""
    return sl.open(directory / "pools.limits", config=[sl.LimitSet("places", [sl.Concurrency("places", 2)]), *sets])


def remember(limits: sl.SetHandle) -> None:
    """An initializer: keep the handle."""
    global limits_of_this_process
    limits_of_this_process = limits


def check_by_initializer(_turn: int) -> bool:
    """Take one, by the handle that the initializer kept."""
    return bool(limits_of_this_process.check())


def check_by_argument(limits: sl.SetHandle, _turn: int) -> bool:
    """Take one, by a handle that came with the call."""
    return bool(limits.check())


def work_under_a_permit(limits: sl.SetHandle, number: int) -> tuple[int, int]:
    """Work that needs a place, in whichever process it runs."""
    with limits.acquire():
        return number * number, os.getpid()


def squared(number: int, *, exponent: int = 2) -> int:
    """A call that needs nothing."""
    power: int = number**exponent
    return power


def settle(used: int) -> int:
    """Settle the permit that the executor took; return how much came back."""
    permit = current_permit()
    assert permit is not None
    refunded: int = permit.settle(tokens=used).refunded["tokens"]
    return refunded


def fail() -> None:
    """A call that fails."""
    raise LookupError("as it was asked to")


def hold_until(path: Path) -> int:
    """Stay busy until the test creates this file."""
    while not path.exists():
        time.sleep(0.005)
    return os.getpid()


def be_killed() -> None:
    """Kill the process that runs this."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_permit() -> bool:
    """Whether this runs outside of any permit."""
    return current_permit() is None
