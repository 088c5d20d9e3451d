"""What all tests share: places for segments, and ways to wait."""

import os
import secrets
import shutil
import subprocess
import sys
import threading
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
"""Seconds by which two readings of a segment's clock may differ from the time between them, either way."""

TIMEOUT = 60.0
"""Seconds after which a waiting test gives up. Nothing takes this long unless something is wrong."""

# Ray listens on all addresses and runs whatever it is sent, so it gets a token, which it reads when it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


@pytest.fixture
def segment_path() -> Iterator[Path]:
    """A path in shared memory at which nothing exists yet; what a test puts there is removed afterwards."""
    path = Path("/dev/shm") / f"shmlimit-test-{os.getpid()}-{uuid.uuid4().hex}.limits"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in shared memory for this test alone."""
    path = Path(f"/dev/shm/shmlimit-test-{uuid.uuid4().hex}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_set(segment_path: Path) -> Callable[..., sl.SetHandle]:
    """Opens a segment with one set of the given limits, and returns the set."""

    def open_set(*limits: object, strict: bool = True, **options: object) -> sl.SetHandle:
        return sl.open(segment_path, sl.LimitSet("set", limits, **options), strict=strict)["set"]

    return open_set


@contextmanager
def _ray_head() -> Iterator[str]:
    """The address of a small Ray in a process of its own: everything that Ray starts there ends with that process.

    Ray gives its own processes half a minute to start, however busy the machine is, and leaves them running if
    that is too short.
    """
    for _ in range(5):
        head = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "ray_head.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert head.stdout is not None
        # On a busy machine, Ray has been seen to hang for good.
        in_time = threading.Timer(120, head.kill)
        in_time.start()
        address = head.stdout.readline().strip()
        in_time.cancel()
        try:
            if address:
                yield address
                return
        finally:
            head.communicate()
    pytest.fail("Ray does not start")


@contextmanager
def ray_on_loopback(*paths: Path) -> Iterator[Any]:
    """A small Ray whose workers find modules at these paths; skips the test if Ray is not installed."""
    ray = pytest.importorskip("ray", reason="ray has no release for this version of Python")
    with _ray_head() as address:
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, paths))}}
        ray.init(address, log_to_driver=False, runtime_env=environment)
        try:
            yield ray
        finally:
            ray.shutdown()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Waits for a condition; fails if that takes longer than anything should."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.001)


def queued(limits: sl.SetHandle) -> int:
    """How many requests wait in the queue for a set."""
    (described,) = [each for each in sl.open(limits.path).snapshot()["sets"] if each["name"] == limits.name]
    return len(described["tickets"])


def limitctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the `limitctl` of the installed package; returns its exit code and output."""
    program = Path(sys.executable).with_name("limitctl")
    return subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
