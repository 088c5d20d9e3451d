"""A clock that tests move, and the fixtures that give them one."""

import asyncio
import os
import pickle
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from observing import until

import shmlimit as sl
import shmlimit.testing

HOURLY = sl.Calls("requests", 1, "1h", algorithm="gcra")


def test_a_limit_replenishes_as_the_clock_is_moved_and_not_otherwise(segment_path):
    clock = sl.VirtualClock()
    limits = sl.open(segment_path, sl.LimitSet("api", [HOURLY]), clock=clock)["api"]
    assert limits.check()
    refused = limits.check()
    assert not refused
    assert refused.retry_after == 3600
    clock.advance(3599.999)
    assert not limits.check()
    clock.advance(timedelta(milliseconds=1))
    assert limits.check()


def test_who_waits_for_as_long_as_a_refusal_says_is_admitted(segment_path):
    clock = sl.VirtualClock()
    # A seventh of a second is neither a whole number of nanoseconds nor exact as a float.
    limits = sl.open(segment_path, sl.LimitSet("api", [sl.Calls("c", 7, 1, algorithm="gcra", burst=1)]), clock=clock)[
        "api"
    ]
    for _ in range(100):
        assert limits.check()
        refused = limits.check()
        assert not refused
        clock.advance(refused.retry_after)


@pytest.mark.parametrize(
    "limit",
    [
        sl.Calls("c", 10, "2s", algorithm="gcra"),
        sl.Calls("c", 10, "2s", algorithm="gcra", burst=4),
        sl.Calls("c", 10, "2s", algorithm="sliding_window"),
        sl.Calls("c", 10, "2s", algorithm="fixed_window"),
    ],
)
def test_who_presses_at_the_worst_instants_gets_exactly_the_bound(segment_path, limit):
    clock = sl.VirtualClock()
    limits = sl.open(segment_path, sl.LimitSet("api", [limit]), clock=clock)["api"]
    # From shortly before a window turns, take everything there is, every thousandth of a second.
    clock.advance(1.998)
    admitted = [
        sum(1 for _ in iter(lambda: bool(limits.check()), False)) for _ in range(4000) if not clock.advance(0.001)
    ]
    most = max(sum(admitted[first : first + 2000]) for first in range(2000))
    assert limit.bound == f"at most {most} in any 2s"


def test_windows_of_the_calendar_turn_where_the_calendar_says(segment_path):
    clock = sl.VirtualClock(datetime(2026, 1, 31, 23, 59, 59, tzinfo=timezone.utc))
    monthly = sl.Calls("requests", 1, "calendar:month", algorithm="fixed_window")
    limits = sl.open(segment_path, sl.LimitSet("api", [monthly]), clock=clock)["api"]
    assert limits.check()
    assert not limits.check()
    clock.set(datetime(2026, 2, 1, tzinfo=timezone.utc))
    assert limits.check()
    assert limits.check().retry_after == 28 * 86_400


def test_the_clock_goes_forward_only():
    clock = sl.VirtualClock(1000)
    with pytest.raises(ValueError, match="only goes forward"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="only goes forward"):
        clock.advance(timedelta(seconds=-1))
    with pytest.raises(ValueError, match="only goes forward"):
        clock.set(999)
    with pytest.raises(ValueError, match="time zone"):
        clock.set(datetime(2026, 1, 1))
    clock.set(1000)
    clock.set(1001.5)
    assert clock.now == 1001.5
    assert repr(sl.VirtualClock()) == "<VirtualClock at 2000-01-01T00:00:00+00:00>"


def test_a_wait_moves_the_clock_to_its_turn_or_to_the_end_of_its_timeout(segment_path):
    clock = sl.VirtualClock(1000)
    declared = sl.LimitSet("api", [HOURLY, sl.Concurrency("places", 1)])
    limits = sl.open(segment_path, declared, clock=clock)["api"]
    held = limits.acquire()
    with pytest.raises(sl.AcquireTimeout):
        limits.acquire(timeout=86_400)
    assert clock.now == 1000 + 86_400
    held.release()
    limits.acquire(timeout=1).release()
    limits.acquire(timeout=86_400).release()
    assert clock.now == 1000 + 86_400 + 3600


def test_tasks_wait_by_the_clock_as_threads_do(segment_path):
    async def wait():
        for hours in range(5):
            await limits.acquire_async(timeout=86_400)
            assert clock.now == 1000 + 3600 * hours
        with pytest.raises(sl.AcquireTimeout):
            await limits.acquire_async(timeout=60)
        assert clock.now == 1000 + 4 * 3600 + 60

    clock = sl.VirtualClock(1000)
    limits = sl.open(segment_path, sl.LimitSet("api", [HOURLY]), clock=clock)["api"]
    asyncio.run(wait())


def test_a_clock_that_does_not_advance_by_itself_leaves_that_to_the_test(segment_path):
    clock = sl.VirtualClock(1000, auto_advance=False)
    limits = sl.open(segment_path, sl.LimitSet("api", [HOURLY]), clock=clock)["api"]
    assert limits.check()

    async def wait():
        waiting = asyncio.ensure_future(limits.acquire_async(timeout=86_400))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert clock.now == 1000
        clock.advance(3600)
        await waiting

    asyncio.run(wait())


def test_what_is_opened_while_a_clock_is_entered_goes_by_it(segment_path):
    with sl.VirtualClock() as clock:
        limits = sl.open(segment_path, sl.LimitSet("api", [HOURLY]))["api"]
        with sl.VirtualClock():
            pass
        same = sl.open(segment_path)["api"]
    assert limits.check()
    assert not same.check()
    clock.advance(3600)
    assert same.check()


def test_a_handle_that_goes_by_a_clock_does_not_pickle(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("api", [HOURLY]), clock=sl.VirtualClock())
    for handle in (segment, segment["api"]):
        with pytest.raises(TypeError, match="clock of this process"):
            pickle.dumps(handle)


def test_a_pickle_finds_the_segment_that_goes_by_the_real_time(segment_path):
    real = sl.open(segment_path, sl.LimitSet("api", [HOURLY]))
    with sl.VirtualClock():
        sl.open(segment_path)
    assert pickle.loads(pickle.dumps(real)) is real


def test_the_fixtures_work_in_a_suite_that_asks_for_them(tmp_path):
    conftest, example, of_all_tests = re.findall(
        r"```python\n(.*?)```", shmlimit.testing.__doc__ or "", flags=re.DOTALL
    )
    (tmp_path / "conftest.py").write_text(f"import pytest\n\n{conftest}\n{of_all_tests}")
    (tmp_path / "test_example.py").write_text(example)
    before = set(os.listdir("/dev/shm"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    left = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("shmlimit-test-")}
    # Other tests that run at the same time have directories, too, and remove them when they end.
    until(lambda: not any(Path("/dev/shm", name).is_dir() for name in left), f"no directory of {left} is left")


def test_nothing_of_the_fixtures_is_loaded_unasked():
    command = [
        sys.executable,
        "-c",
        "import sys, shmlimit; print('pytest' in sys.modules, 'shmlimit.testing' in sys.modules)",
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["False", "False"]
    from importlib.metadata import entry_points

    assert not [point for point in entry_points(group="pytest11") if "shmlimit" in point.value]


def test_each_segment_of_the_fixture_is_one_of_its_own(shmlimit_segment):
    declared = sl.LimitSet("api", [HOURLY])
    one, other = shmlimit_segment(declared), shmlimit_segment(declared, strict=False)
    assert one["api"].check()
    assert other["api"].check()
    assert (one.strict, other.strict) == (True, False)
