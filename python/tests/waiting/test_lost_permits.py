"""Permits that hold a place and are garbage-collected before they are released."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings

import pytest

import shmlimit as sl


def _warnings_of(lose):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lose()
        gc.collect()
    return caught


def _unsettled(limits):
    segment = limits._segment.snapshot()
    return {limit["name"]: limit["counts"]["unsettled"] for limit in segment["sets"][0]["limits"]}


def _in_a_cycle(limits):
    cycle = [limits.acquire()]
    cycle.append(cycle)


def _as_a_condition(limits):
    if limits.try_acquire():
        pass


def _in_a_task(limits):
    async def main():
        await limits.acquire_async()

    asyncio.run(main())


def _after_an_exception(limits):
    with pytest.raises(ZeroDivisionError):
        [limits.acquire(), 1 / 0]


LOSES = {
    "as a statement": lambda limits: limits.acquire() and None,
    "without waiting": lambda limits: limits.try_acquire() and None,
    "as a condition": _as_a_condition,
    "of a pool": lambda limits: sl.Pool([limits]).acquire() and None,
    "in a cycle": _in_a_cycle,
    "in a task": _in_a_task,
    "after an exception": _after_an_exception,
    "settled": lambda limits: limits.acquire().settle(calls=0) and None,
    "of a labelled handle": lambda limits: limits.labelled("x").acquire() and None,
}


@pytest.mark.parametrize("lose", LOSES.values(), ids=LOSES)
def test_a_permit_that_is_lost_warns_and_is_counted_and_gives_its_place_back(open_set, lose):
    limits = open_set(sl.Concurrency("in_flight", 1), sl.Calls("calls", 99, 60))
    for times in (1, 2):
        (caught,) = _warnings_of(lambda: lose(limits))
        assert caught.category is ResourceWarning
        assert "with" not in str(caught.source)
        assert "context manager" in str(caught.message)
        assert _unsettled(limits) == {"in_flight": times, "calls": 0}
        assert limits.peek({"in_flight": 1})["in_flight"].admitted
        # The recorded warning keeps the permit, which has been released by then.
        assert caught.source.fencing_number is None
        del caught


def test_a_permit_that_is_released_or_holds_no_place_is_not_lost(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1), sl.Calls("calls", 99, 60))

    def use():
        limits.acquire().release()
        with limits.acquire():
            pass
        permit = limits.acquire()
        permit.throttled(0)
        permit.release()
        limits.acquire({"in_flight": 0})
        with pytest.raises(ZeroDivisionError), limits.acquire():
            raise ZeroDivisionError

    assert [str(one.message) for one in _warnings_of(use)] == []


def test_the_warning_says_where_the_permit_was_made_if_memory_is_traced(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, shmlimit as sl\n"
        "limits = sl.open(sys.argv[1], sl.LimitSet('api', [sl.Concurrency('in_flight', 9)]))['api']\n"
        # Its memory is reused for the next permit.
        "limits.acquire().release()\n"
        "permit = limits.acquire()  # here\n"
        "del permit\n"
    )
    options = ["-X", "tracemalloc=5", "-W", "default"]
    ended = subprocess.run(
        [sys.executable, *options, program, tmp_path / "limits"], capture_output=True, text=True, check=True
    )
    assert "ResourceWarning: a permit of set api was garbage-collected" in ended.stderr
    assert f'File "{program}", lineno 4\n    permit = limits.acquire()  # here' in ended.stderr


def test_a_filter_that_makes_it_an_error_has_it_reported_and_the_program_goes_on(open_set, monkeypatch):
    limits = open_set(sl.Concurrency("in_flight", 1))
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError):
            # While another exception is being raised.
            {limits.acquire(): 1}["absent"]
        gc.collect()
    assert [one.exc_type for one in reported] == [ResourceWarning]
    limits.acquire(timeout=0).release()
    reported.clear()


def test_a_forked_child_loses_nothing_that_its_parent_holds(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    permit = limits.acquire()
    child = os.fork()
    if child == 0:
        caught = _warnings_of(lambda: globals().update(gone=permit) or globals().pop("gone"))
        del permit
        gc.collect()
        os._exit(len(caught))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not limits.try_acquire()
    permit.release()


def test_permits_that_are_kept_until_the_program_ends_do_it_no_harm(tmp_path):
    program = (
        "import sys, shmlimit as sl\n"
        "limits = sl.open(sys.argv[1], sl.LimitSet('api', [sl.Concurrency('in_flight', 9)]))['api']\n"
        "kept = [limits.acquire() for _ in range(9)]\n"
        "class Holder: pass\n"
        "holder = Holder(); holder.itself = holder; holder.permit = kept.pop()\n"
    )
    for options in ([], ["-X", "dev"], ["-W", "error"], ["-X", "tracemalloc=5"]):
        ended = subprocess.run(
            [sys.executable, *options, "-c", program, tmp_path / "limits"], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
