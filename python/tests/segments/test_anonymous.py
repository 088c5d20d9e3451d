"""Segments without a file: for threads, forked children, and processes that are spawned while their creator lives."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import shmlimit as sl

SLOTS = sl.LimitSet("slots", [sl.Concurrency("places", 2)])


def is_admitted(handle: sl.SetHandle) -> bool:
    """Whether a process gets a place through a handle that it was sent."""
    return bool(handle.try_acquire())


def test_it_limits_the_threads_of_a_program_and_leaves_no_file():
    before = set(os.listdir("/dev/shm"))
    slots = sl.anonymous(SLOTS)["slots"]
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "slots" in name}
    with ThreadPoolExecutor(2) as threads:
        held = [thread.result() for thread in [threads.submit(slots.acquire) for _ in range(2)]]
    assert not slots.try_acquire()
    for permit in held:
        permit.release()
    assert slots.try_acquire()


def test_each_call_makes_another_one():
    one, other = sl.anonymous(SLOTS)["slots"], sl.anonymous(SLOTS)["slots"]
    held = [one.acquire(), one.acquire()]
    assert not one.try_acquire()
    assert other.try_acquire()
    del held


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_share_it_however_they_are_started(method):
    slots = sl.anonymous(SLOTS)["slots"]
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        assert pool.apply(is_admitted, (slots,))
        held = [slots.acquire(), slots.acquire()]
        assert not pool.apply(is_admitted, (slots,))
        del held


def test_a_pickle_that_arrives_when_its_maker_is_gone_says_so():
    program = (
        "import pickle, sys, shmlimit as sl; "
        "sys.stdout.buffer.write(pickle.dumps(sl.anonymous(sl.LimitSet('s', [sl.Concurrency('c', 1)]))))"
    )
    late = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout
    with pytest.raises(sl.SegmentError, match="no process has it open"):
        pickle.loads(late)


def test_a_checkpoint_is_refused():
    limit = {"name": "c", "kind": "concurrency", "capacity": 1}
    declared = {"segment": {"checkpoint": {"path": "/nowhere"}}, "set": [{"name": "s", "limit": [limit]}]}
    with pytest.raises(sl.SegmentError, match="cannot have a checkpoint"):
        sl.anonymous(declared)


def test_it_follows_a_clock_and_waiting_moves_that():
    clock = sl.VirtualClock(1000)
    mail = sl.anonymous(sl.LimitSet("mail", [sl.Calls("sent", 1, "1h")]), clock=clock)["mail"]
    for hours in range(5):
        mail.acquire()
        assert clock.now == 1000 + 3600 * hours
