"""What opening a segment says when it waits, and where no segment can be."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import wait_until

import shmlimit as sl

SETS = [sl.LimitSet("api", [sl.Calls("requests", 10, "1h")])]
ATTACH_BYTE = (1 << 40) - 1
"""The byte that is locked while a process attaches: shm-layout.md says so."""


@contextmanager
def attaching(path: Path) -> Iterator[None]:
    """As if another process were in the middle of attaching to the segment, and did not finish."""
    file = os.open(path, os.O_RDWR)
    # struct flock: type, whence, start, length, pid.
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, ATTACH_BYTE, 1, 0))
    try:
        yield
    finally:
        os.close(file)


@pytest.fixture
def closed(segment_path: Path) -> Path:
    """The path of a segment that nobody has open."""
    sl.open(segment_path, SETS).close()
    return segment_path


def test_a_wait_says_what_it_is_for_and_ends_with_it(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened: list[sl.Segment] = []
    opener = threading.Thread(target=lambda: opened.append(sl.open(closed, SETS)))
    with attaching(closed):
        opener.start()
        wait_until(lambda: bool(caplog.records), "what it waits for")
        assert not opened
    opener.join()
    assert opened[0]["api"].check()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("shmlimit", logging.WARNING)
    assert record.getMessage() == (
        f"{closed} is being created or attached by process {os.getpid()}: waiting until that is done, for 10 s at most"
    )


def test_a_logger_that_raises_does_not_end_the_wait(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    class Raising(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            said.append(threading.current_thread())
            raise RuntimeError("the program's")

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(logging.getLogger("shmlimit"), "handlers", [Raising()])
    opened: list[sl.Segment] = []
    opener = threading.Thread(target=lambda: opened.append(sl.open(closed, SETS)))
    with attaching(closed):
        opener.start()
        wait_until(lambda: bool(said), "what it waits for")
    opener.join()
    assert opened[0]["api"].check()
    assert said == [opener]


def test_a_wait_that_does_not_end_is_an_error_that_names_the_process(closed: Path) -> None:
    with attaching(closed), pytest.raises(sl.LockStuck, match=rf"attached by process {os.getpid()}, which") as raised:
        sl.open(closed, SETS)
    assert (raised.value.pid, raised.value.path) == (os.getpid(), str(closed))


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(sl.NotFound, match=rf"there is no directory {missing}: create it") as raised:
        sl.open(missing / "below" / "limits", SETS)
    assert isinstance(raised.value, FileNotFoundError)
    assert raised.value.path == str(missing / "below" / "limits")
    assert not missing.exists()


def _mounted(mount: str, path: Path) -> str:
    """What opening a segment at a path prints after the command `mount`, both in a mount namespace of their own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs to mount")
    code = (
        "import shmlimit as sl, sys\n"
        "try: sl.open(sys.argv[1], sl.LimitSet('api', [sl.Calls('requests', 10, '1h')]))\n"
        "except sl.SegmentError as error: print(type(error).__name__, error.errno, error)\n"
    )
    arguments = ["sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, "-c", code, str(path)]
    command = ["unshare", "--mount", "--propagation", "private", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_system_without_shared_memory_says_so() -> None:
    said = _mounted("mount -t tmpfs none /dev", Path("/dev/shm/api.limits"))
    assert said.startswith("NotFound 2 ")
    assert "this system has no /dev/shm, as in AWS Lambda: give a path on a local file system, such as /tmp" in said


def test_a_file_system_that_is_mounted_read_only_says_so(closed: Path, tmp_path: Path) -> None:
    ro = "mount -t tmpfs -o ro none"
    said = _mounted(f"{ro} {tmp_path}", tmp_path / "limits")
    assert said.startswith("SegmentError 30 ")
    assert "its file system is mounted read-only here" in said
    shutil.copy(closed, tmp_path / "there")
    said = _mounted(f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}", tmp_path / "there")
    assert said.startswith("SegmentError 30 cannot open ")
    assert "mount it for writing" in said


def test_tasks_beyond_the_queue_are_told_what_to_raise(segment_path: Path) -> None:
    limits = sl.open(segment_path, sl.LimitSet("api", [sl.Concurrency("places", 1)], waiters=4))["api"]

    async def work() -> None:
        async with limits.acquire_async():
            await asyncio.sleep(0)

    async def gather() -> list[BaseException]:
        with limits.acquire():
            tasks = [asyncio.ensure_future(work()) for _ in range(9)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            while len(done) < 5:
                done, _ = await asyncio.wait(tasks, timeout=0.01)
        return [answer for answer in await asyncio.gather(*tasks, return_exceptions=True) if answer is not None]

    refused = asyncio.run(gather())
    assert len(refused) == 5
    for error in refused:
        assert isinstance(error, sl.Refused)
        assert "the queue of set `api` is full" in str(error)
        assert "declare more `waiters`" in str(error)


def test_a_full_table_names_what_to_raise(segment_path: Path) -> None:
    limits = sl.open(segment_path, sl.LimitSet("api", [sl.Concurrency("places", 1)], keyed=1))["api"]
    answers = [limits.try_acquire(key=str(number)) for number in range(100)]
    full = next(answer for answer in answers if not answer)
    assert (full.reason, "declare more `max_keys`" in str(full)) == ("table_full", True)
