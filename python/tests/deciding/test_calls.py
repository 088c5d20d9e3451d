"""What a decision creates and runs in the interpreter: nothing that nobody uses."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest

import shmlimit as sl

PLENTY = 1_000_000


@pytest.fixture
def segment(segment_path):
    calls = sl.Calls("calls", PLENTY, 60)
    return sl.open(
        segment_path,
        [
            sl.LimitSet("calls", [calls]),
            sl.LimitSet("keyed", [calls], keyed=10),
            sl.LimitSet("places", [sl.Concurrency("in_flight", 1000)]),
            sl.LimitSet("refused", [sl.Calls("calls", 1, "30d", algorithm="fixed_window", align="first_use")]),
        ],
    )


def leave(limits: sl.SetHandle) -> None:
    with limits.acquire():
        pass


def leave_in_time(limits: sl.SetHandle) -> None:
    with limits.acquire(timeout=30):
        pass


CALLS: list[tuple[str, Callable[[sl.SetHandle], object]]] = [
    ("calls", lambda limits: limits.check()),
    ("calls", lambda limits: limits.try_acquire().release()),
    ("calls", lambda limits: limits.try_acquire({"calls": 1})),
    ("calls", leave),
    ("calls", leave_in_time),
    ("keyed", lambda limits: limits.check(key="a")),
    ("keyed", lambda limits: limits.try_acquire(key="a")),
    ("places", leave),
    ("refused", lambda limits: limits.check()),
    ("refused", lambda limits: limits.try_acquire()),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_decision_runs_no_function_of_the_front(segment, name, call):
    limits = segment[name]
    call(limits)
    entered = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call(limits)
    finally:
        sys.setprofile(before)
    assert entered == [call.__code__]


@pytest.mark.parametrize("name", ["calls", "places", "refused"])
def test_an_answer_is_one_block_of_memory(segment, name):
    limits, count = segment[name], 200
    limits.try_acquire()
    kept: list[object] = [None] * count
    gc.collect()
    before = sys.getallocatedblocks()
    for index in range(count):
        kept[index] = limits.try_acquire()
    # The loop itself takes a few blocks.
    assert sys.getallocatedblocks() - before <= count + 5


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_answers_that_no_one_keeps_leave_nothing_behind(segment, name, call):
    limits = segment[name]
    for _ in range(100):
        call(limits)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        call(limits)
    assert sys.getallocatedblocks() - before < 100


def test_the_memory_of_an_answer_is_used_again_and_says_nothing_of_the_one_before(segment):
    calls, places = segment["calls"], segment["places"]
    for _ in range(100):
        first = calls.try_acquire({"calls": 7})
        assert first.taken == {"calls": 7}
        del first
        second = places.try_acquire()
        assert (second.set_name, second.taken) == ("places", {"in_flight": 1})
        second.release()
        third = places.try_acquire()
        assert third.fencing_number is not None
        del second, third
    assert segment["places"].forecast()["in_flight"].spendable == 1000


def test_more_answers_than_are_used_again_are_given_back_each_once(segment):
    places = segment["places"]
    for _ in range(3):
        held = [places.try_acquire() for _ in range(1000)]
        assert all(held)
        assert not places.try_acquire()
        assert len({permit.fencing_number for permit in held}) == 1000
        del held
        assert places.forecast()["in_flight"].spendable == 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda limits: limits.try_acquire(None, None), "at most 1 positional"),
        (lambda limits: limits.check(keys="a"), "no parameter 'keys'"),
        (lambda limits: limits.acquire({}, costs={}), "got 'costs' twice"),
        (lambda limits: limits.acquire(heartbeat="yes"), "heartbeat"),
        (lambda limits: limits.try_acquire(tier=3), "tier"),
        (lambda limits: limits.try_acquire().release(1, 2), "at most 1 positional"),
        (lambda limits: limits.try_acquire().__enter__(1), "at most 0 positional"),
    ],
)
def test_what_a_call_does_not_take_is_an_error(segment, call, message):
    with pytest.raises(TypeError, match=message):
        call(segment["calls"])


def test_names_of_parameters_need_not_be_the_interpreters_own(segment):
    name = "".join(["k", "e", "y"])
    assert segment["keyed"].try_acquire(**{name: "a"})


@pytest.mark.parametrize("kind", [sl.Permit, sl.Refusal])
def test_answers_are_made_by_decisions_alone(segment, kind):
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        kind.__new__(kind)
    with pytest.raises(TypeError):
        type("Derived", (kind,), {})
    (base,) = kind.__bases__
    with pytest.raises(TypeError):
        base.__new__(kind)
    with pytest.raises(TypeError):
        type("Derived", (base,), {})()
    with pytest.raises(TypeError):
        object.__new__(kind)
