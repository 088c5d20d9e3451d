"""What settling gives back and charges, under every algorithm, for calls, rates and budgets."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path

import pytest

import shmlimit as sl
from shmlimit._declaration import Algorithm

CAPACITY = 20
RESERVED = 8
Declared = sl.Calls | sl.Rate

WINDOWS: dict[str, dict[str, object]] = {
    **{algorithm: {"algorithm": algorithm} for algorithm in typing.get_args(Algorithm)},
    "fixed_window of the calendar": {"algorithm": "fixed_window", "window": "calendar:month"},
    "fixed_window from the first use": {"algorithm": "fixed_window", "align": "first_use"},
}
KINDS: dict[str, Callable[..., Declared]] = {"calls": sl.Calls, "rate": sl.Rate}


def declared(kind: str, window: str, **options: object) -> Declared:
    options = {"window": "1h", **WINDOWS[window], **options}
    return KINDS[kind]("units", CAPACITY, options.pop("window"), **options)


@pytest.fixture
def open_limit(segment_path: Path) -> Callable[[sl.Calls | sl.Rate | sl.Budget], sl.SetHandle]:
    # The clock stands still: what comes back does so through settling, not with time.
    clock = sl.VirtualClock()
    return lambda limit: sl.open(segment_path, sl.LimitSet("set", [limit]), clock=clock)["set"]


def left(limits: sl.SetHandle) -> object:
    return limits.forecast()["units"].spendable


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("used", [0, 3, RESERVED, RESERVED + 4])
def test_what_was_not_used_comes_back_and_more_is_charged(open_limit, window, kind, used):
    limits = open_limit(declared(kind, window))
    with limits.acquire(units=RESERVED) as permit:
        assert left(limits) == CAPACITY - RESERVED
        settlement = permit.settle(units=used)
    assert settlement.refunded == {"units": max(0, RESERVED - used)}
    assert settlement.overdraft == {"units": max(0, used - RESERVED)}
    assert left(limits) == CAPACITY - used
    # That much can be taken, and no more.
    assert limits.try_acquire(units=CAPACITY - used)
    assert not limits.try_acquire(units=1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_comes_back_where_the_limit_says_so(open_limit, window, kind):
    limits = open_limit(declared(kind, window, refund=False))
    with limits.acquire(units=RESERVED) as permit:
        assert permit.settle(units=3).refunded == {"units": 0}
    assert left(limits) == CAPACITY - RESERVED


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cancelled_comes_back_and_what_is_only_released_does_not(open_limit, window, kind):
    limits = open_limit(declared(kind, window))
    limits.acquire(units=RESERVED).cancel()
    assert left(limits) == CAPACITY
    limits.acquire(units=RESERVED).release()
    assert left(limits) == CAPACITY - RESERVED


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_unit_settle_exactly(open_limit, window, kind):
    if kind == "calls":
        pytest.skip("calls are whole")
    limits = open_limit(declared(kind, window, unit="0.01"))
    with limits.acquire(units="8") as permit:
        assert str(permit.settle(units=0.1 + 0.2).refunded["units"]) == "7.7"
    assert str(left(limits)) == "19.7"


@pytest.mark.parametrize("window", ["1h", "calendar:month"])
def test_a_budget_is_debited_in_full_under_a_permit(open_limit, window):
    limits = open_limit(sl.Budget("units", CAPACITY, window))
    with limits.acquire() as permit:
        assert left(limits) == CAPACITY
        assert permit.debit("units", 15)
        assert permit.debit("units", 15), "something was left before"
        assert not permit.debit("units", 15), "nothing was left, and it counts all the same"
    assert not limits.try_acquire()


@pytest.mark.parametrize("window", ["1h", "calendar:month"])
def test_settling_a_budget_debits_it(open_limit, window):
    limits = open_limit(sl.Budget("units", CAPACITY, window))
    with limits.acquire() as permit:
        permit.settle(units=15)
    assert left(limits) == CAPACITY - 15


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_was_reserved_comes_back_at_once_and_what_is_held_stays_held(segment_path, window, kind):
    limits = sl.open(
        segment_path,
        sl.LimitSet("set", [declared(kind, window), sl.Concurrency("places", 1), sl.Budget("spent", 10, "1h")]),
        clock=sl.VirtualClock(),
    )["set"]
    with limits.acquire(units=RESERVED) as permit:
        permit.debit("spent", 4)
        settlement = permit.settle_all_unused()
        assert settlement.refunded == {"units": RESERVED}
        assert settlement.overdraft == {"units": 0}
        assert left(limits) == CAPACITY
        assert limits.forecast()["spent"].spendable == 6, "what was debited was used"
        assert limits.try_acquire(units=1).binding == "places"
        with pytest.raises(sl.AlreadySettled):
            permit.settle_all_unused()
    with pytest.raises((sl.AlreadyReleased, sl.AlreadySettled)):
        permit.settle(units=1)
    with pytest.raises(sl.AlreadyReleased):
        released(limits).settle_all_unused()


def released(limits: sl.SetHandle) -> sl.Permit:
    permit = limits.acquire(units=1)
    permit.release()
    return permit
