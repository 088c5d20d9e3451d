"""What all tests share: places for segments, and ways to wait."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl

pytest_plugins = ["shmlimit.testing"]

CLOCK_LAG = 20e-6
"""Seconds by which two readings of a segment's clock may differ from the time between them, there and back."""

TIMEOUT = 60.0
"""Seconds after which a test that waits gives up. Nothing takes as long but where something is wrong."""


@pytest.fixture
def segment_path() -> Iterator[Path]:
    """A path in shared memory at which nothing is, and nothing will be."""
    path = Path("/dev/shm") / f"shmlimit-test-{os.getpid()}-{uuid.uuid4().hex}.limits"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def open_set(segment_path: Path) -> Callable[..., sl.Limits]:
    """Opens a segment of one set with the given limits, and gives the set."""

    def open_set(*limits: object, strict: bool = True, **options: object) -> sl.Limits:
        return sl.open(segment_path, sl.LimitSet("set", limits, **options), strict=strict)["set"]

    return open_set


def _starts(ray: Any, **options: Any) -> bool:
    """Whether Ray starts in the time that it gives its own processes: half a minute, whatever else the machine does."""
    try:
        ray.init(**options)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        return False
    return True


@contextmanager
def ray_on_loopback(*paths: Path) -> Iterator[Any]:
    """Ray, small, whose workers find modules at these paths; skips the test where there is none."""
    ray = pytest.importorskip("ray", reason="ray has no release for this version of Python")
    options = {
        "num_cpus": 2,
        "include_dashboard": False,
        "object_store_memory": 80 * 1024 * 1024,
        "log_to_driver": False,
        "_node_ip_address": "127.0.0.1",
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, paths))}},
    }
    assert any(_starts(ray, **options) for _ in range(5)), "Ray does not start"
    try:
        yield ray
    finally:
        ray.shutdown()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Waits until something is so; fails where that takes longer than anything can."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.001)


def queued(limits: sl.Limits) -> int:
    """How many requests wait in the queue for a set."""
    (described,) = [each for each in sl.open(limits.path).snapshot()["sets"] if each["name"] == limits.name]
    return len(described["tickets"])
