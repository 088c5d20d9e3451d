"""What pickles: every answer that holds nothing, and every exception."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl
from shmlimit import results

SETS = [
    sl.LimitSet("rates", [sl.Rate("tokens", 10, "1h", unit="0.5"), sl.Calls("requests", 100, "1h")]),
    sl.LimitSet("places", [sl.Concurrency("places", 1)], waiters=0),
]
EXCEPTIONS = [each for each in vars(sl).values() if inspect.isclass(each) and issubclass(each, BaseException)]


def refused(segment: sl.Segment) -> Any:
    with segment["places"].acquire():
        return segment["places"].try_acquire()


ANSWERS: dict[str, list[Callable[[sl.Segment], Any]]] = {
    "Checked": [
        lambda segment: segment["rates"].check(tokens=2.5),
        lambda segment: segment["rates"].check_many([], tokens=1),
    ],
    "Forecast": [lambda segment: segment["rates"].forecast()],
    "Refusal": [
        lambda segment: [segment["rates"].try_acquire(tokens=10), segment["rates"].try_acquire(tokens=9.5)][1],
        lambda segment: [
            segment["rates"].reserve(tokens=10, max_delay=0),
            segment["rates"].reserve(tokens=9, max_delay=0),
        ][1],
    ],
    "Settlement": [lambda segment: segment["rates"].acquire(tokens=2).settle(tokens=1.5)],
    "Verdict": [lambda segment: segment["rates"].peek(tokens=1)],
}
HOLDING = {
    "Permit": lambda segment: segment["rates"].acquire(tokens=1),
    "Reservation": lambda segment: segment["rates"].reserve(tokens=1, max_delay=0),
    "Acquisition": lambda segment: segment["rates"].acquire_async(tokens=1),
}


@pytest.fixture
def segment(segment_path: Path) -> sl.Segment:
    return sl.open(segment_path, SETS)


def test_every_type_of_an_answer_is_here() -> None:
    assert {*ANSWERS, *HOLDING} == set(results.__all__)


@pytest.mark.parametrize(("name", "ask"), [(name, ask) for name, asks in ANSWERS.items() for ask in asks])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_answer_pickles_as_its_attributes(segment: sl.Segment, name: str, ask: Any, protocol: int) -> None:
    answer = ask(segment)
    again = pickle.loads(pickle.dumps(answer, protocol))
    assert again == answer
    assert pickle.loads(pickle.dumps(again, protocol)) == answer
    assert copy.deepcopy(answer) == answer
    each, other = (next(iter(given.values())) if isinstance(given, dict) else given for given in (answer, again))
    if isinstance(each, list):
        return
    assert type(other) is type(each) is getattr(results, name)
    assert (str(other), repr(other), bool(other)) == (str(each), repr(each), bool(each))
    for attribute in dir(each):
        if not attribute.startswith("_") and not callable(getattr(each, attribute)):
            assert getattr(other, attribute) == getattr(each, attribute), attribute


def test_a_refusal_out_of_a_pickle_still_raises(segment: sl.Segment) -> None:
    refusal = pickle.loads(pickle.dumps(refused(segment)))
    with pytest.raises(sl.Refused) as raised, refusal:
        pass
    assert raised.value.refusal == refusal
    refusal.release()


@pytest.mark.parametrize("name", HOLDING)
@pytest.mark.filterwarnings("ignore:an acquisition was never awaited")
def test_what_holds_something_stays_in_its_process(segment: sl.Segment, name: str) -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(HOLDING[name](segment))


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_every_exception_pickles_with_its_attributes(kind: type[BaseException]) -> None:
    error = kind("what happened")
    vars(error).update(noted=7)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.args) == (kind, "what happened", error.args)
        assert vars(again) == vars(error)


def test_exceptions_of_the_library_pickle_whole(segment: sl.Segment) -> None:
    held = segment["places"].acquire()
    for kind, ask in (
        (sl.AcquireTimeout, lambda: segment["places"].acquire(timeout=0)),
        (sl.NeverAdmissible, lambda: segment["rates"].acquire(tokens=11)),
        (sl.NotFound, lambda: sl.open(segment.path + ".missing")),
        (sl.InUse, lambda: sl.remove(segment.path)),
        (sl.ConfigMismatch, lambda: sl.open(segment.path, SETS[0], on_mismatch="error")),
    ):
        with pytest.raises(kind) as raised:
            ask()
        again = pickle.loads(pickle.dumps(raised.value))
        assert (type(again), str(again), vars(again)) == (kind, str(raised.value), vars(raised.value))
    held.release()
