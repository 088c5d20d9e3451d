"""What tests observe from outside: how many permits are held and requests wait in a segment, and processes that
run a role."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import shmlimit as sl

# Far longer than anything takes, so that only a hang reaches it.
DEADLINE = 180.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str) -> T:
    """Wait for a condition, and return its value; fail after the deadline, saying what did not happen."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)
    return found


def snapshot_of(segment: sl.Segment, name: str) -> dict[str, Any]:
    """One set's part of the segment's snapshot."""
    found: dict[str, Any] = next(part for part in segment.snapshot()["sets"] if part["name"] == name)
    return found


def queued(segment: sl.Segment, name: str) -> int:
    """How many requests wait in the queue."""
    return len(snapshot_of(segment, name)["tickets"])


def active(segment: sl.Segment, name: str) -> int:
    """How many permits of living processes hold something."""
    count: int = snapshot_of(segment, name)["active"]
    return count


def run_role(script: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process of its own from a script with these arguments, with its output captured."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(script), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # So that a role can observe segments as tests do.
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        start_new_session=True,
    )


def output_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process, and return its exit code, output and errors.

    A process that hangs is killed with everything it started, and the test fails.
    """
    try:
        output, errors = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"the process hung; it said {output!r} and {errors!r}") from None
    return process.returncode, output, errors
