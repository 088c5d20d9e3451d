"""Segments that are removed while they are in use, and their successors."""

import subprocess
import sys

import pytest
from conftest import wait_until

import shmlimit as sl


def _is_removed(limits):
    try:
        limits.try_acquire({"requests": 0})
    except sl.Removed as error:
        return error
    return None


def test_handles_of_a_deleted_file_admit_nothing_beside_its_successor(open_set, segment_path):
    former = open_set(sl.Calls("requests", 20, "1h"))
    segment_path.unlink()
    wait_until(lambda: _is_removed(former), "the deletion is noticed")
    removed = _is_removed(former)
    assert (removed.path, removed.cause) == (str(segment_path), "deleted")
    assert former.successor() is None
    latter = open_set(sl.Calls("requests", 20, "1h"))
    with pytest.raises(sl.Removed, match="open the path again"):
        former.check()
    assert sum(bool(latter.check()) for _ in range(30)) == 20


def test_another_process_hears_of_it(open_set, segment_path):
    open_set(sl.Calls("requests", 20, "1h"))
    script = f"""
import shmlimit as sl, time
limits = sl.open({str(segment_path)!r})["set"]
print("open", flush=True)
try:
    while True:
        limits.try_acquire({{"requests": 0}})
        time.sleep(0.01)
except sl.Removed as error:
    print(error.cause, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        segment_path.unlink()
        assert other.stdout.readline() == "deleted\n"


def test_the_successor_is_opened_once_and_follows_the_next(open_set, segment_path):
    limits = open_set(sl.Calls("requests", 20, "1h"), strict=False)
    segment = limits._segment
    assert segment.removed is None
    assert segment.successor() is None
    for capacity in (30, 40):
        sl.remove(segment_path, force=True)
        latter = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("requests", capacity, "1h")]))
        assert _is_removed(limits).cause == "retired"
        successor = limits.successor()
        assert successor.peek()["requests"].remaining == capacity
        assert successor is limits.successor()
        assert segment.successor()["set"] is successor
        assert not successor.strict
        assert len(latter.snapshot()["participants"]) == 1
    assert segment.removed == "retired"


def test_a_removal_is_logged_once_and_so_is_its_successor(open_set, segment_path, caplog):
    caplog.set_level("INFO", logger="shmlimit")
    limits = open_set(sl.Calls("requests", 20, "1h"))
    sl.remove(segment_path, force=True)
    for _ in range(3):
        assert _is_removed(limits)
    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("requests", 9, "1h")]))
    wait_until(lambda: limits.successor() is not None, "the successor is found")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "was removed: it was retired" in caplog.records[0].message
    assert "its successor is open" in caplog.records[1].message


def test_permits_of_a_removed_segment_are_given_back_without_an_error(open_set, segment_path):
    limits = open_set(sl.Concurrency("places", 2), sl.Rate("tokens", 100, "1h"))
    with limits.try_acquire({"tokens": 9}) as permit:
        sl.remove(segment_path, force=True)
        permit.settle(tokens=4)
