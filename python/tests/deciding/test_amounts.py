"""Amounts of any type: exact if something is asked for, rounded up if it was used."""

from __future__ import annotations

import numbers
import random
from decimal import Decimal
from fractions import Fraction

import pytest

import shmlimit as sl


class _Float32:
    """A float of another package, such as `numpy.float32`, whose text is the shortest that yields it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"np.float32({self.text})"

    def __float__(self) -> float:
        return float(self.text)


numbers.Real.register(_Float32)


class _Int64:
    """A whole number of another package."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


WHOLE = [0.3, "0.30", Decimal("0.3"), Fraction(3, 10), _Float32("0.3"), _Float32("3e-1")]
PARTS = {
    "a float": (0.301, 31),
    "text": ("0.301", 31),
    "a decimal": (Decimal("0.301"), 31),
    "a fraction": (Fraction(1, 3), 34),
    "another's float": (_Float32("0.301"), 31),
    "a long decimal": (Decimal("0." + "3" * 50), 34),
    "more than noise": (0.3000001, 31),
}
NONE = [-1, -0.5, Decimal(-1), Fraction(-1, 3), _Int64(-1), float("nan"), float("inf"), "x", _Float32("nan"), 10**30]


def _budget(open_set):
    limits = open_set(
        sl.Budget("usd", 100, "1h", unit="0.01"), sl.Rate("tokens", 100, "1h", algorithm="fixed_window", unit="0.01")
    )
    limits.reset()
    return limits


def _remaining(limits):
    verdicts = limits.peek({"tokens": 0})
    return {name: verdict.remaining for name, verdict in verdicts.items()}


USES = {
    "debit": ("usd", lambda limits, used: limits.debit("usd", used)),
    "debit of a permit": ("usd", lambda limits, used: limits.acquire({"tokens": 0}).debit("usd", used)),
    "settle": ("tokens", lambda limits, used: limits.acquire({"tokens": 2}).settle(tokens=used)),
    "settle with a mapping": ("tokens", lambda limits, used: limits.acquire({"tokens": 2}).settle({"tokens": used})),
    "settle of a budget": ("usd", lambda limits, used: limits.acquire({"tokens": 0}).settle(usd=used)),
    "settle of a pool": ("tokens", lambda limits, used: sl.Pool([limits]).acquire({"tokens": 2}).settle(tokens=used)),
}


@pytest.mark.parametrize(("limit", "use"), USES.values(), ids=USES)
def test_what_was_used_is_rounded_up_to_the_unit_whatever_its_type(open_set, limit, use):
    uses = [
        *((whole, 30) for whole in WHOLE),
        *PARTS.values(),
        *[(0.1 + 0.2, 30), (0.7 * 1.1, 77), (-0.0, 0), (1e-12, 1), (_Int64(3), 300), (3, 300), (True, 100)],
    ]
    for used, units in uses:
        limits = _budget(open_set)
        use(limits, used)
        assert _remaining(limits)[limit] == Decimal(100) - Decimal(units) / 100, repr(used)


@pytest.mark.parametrize(("limit", "use"), USES.values(), ids=USES)
def test_what_is_no_amount_is_an_error_and_charges_nothing(open_set, limit, use):
    limits = _budget(open_set)
    for given in NONE:
        limits.reset()
        before = _remaining(limits)
        with pytest.raises(sl.InvalidAmount):
            use(limits, given)
        if limit == "usd":
            assert _remaining(limits) == before
    for given in (None, [1], b"1", 1j):
        with pytest.raises(TypeError):
            use(limits, given)


def test_a_settlement_that_fails_can_be_made_again(open_set):
    limits = _budget(open_set)
    with limits.acquire({"tokens": 2}) as permit:
        with pytest.raises(sl.InvalidAmount):
            permit.settle(tokens=float("nan"))
        permit.settle(tokens=0.1 + 0.2)
    assert _remaining(limits)["tokens"] == Decimal("99.7")


def test_what_is_asked_for_is_exact_or_an_error(open_set):
    limits = _budget(open_set)
    for whole in WHOLE:
        limits.reset()
        assert limits.try_acquire({"tokens": whole})
        assert _remaining(limits)["tokens"] == Decimal("99.7"), repr(whole)
    for part in [*(part for part, _ in PARTS.values()), *NONE, 0.1 + 0.2]:
        for ask in (limits.try_acquire, limits.check, limits.acquire, sl.Pool([limits]).try_acquire):
            with pytest.raises(sl.RequestError):
                ask({"tokens": part})


@pytest.mark.parametrize("capacity", [Fraction(1, 4), _Float32("0.25"), _Float32("2.5e-1"), Decimal("0.25"), 0.25])
def test_capacities_are_amounts_of_any_type(open_set, capacity):
    limits = open_set(sl.Rate("tokens", capacity, "1h", unit="0.01"))
    assert limits.peek({"tokens": 0})["tokens"].remaining == Decimal("0.25")
    with pytest.raises(sl.DeclarationError, match="1/3"):
        open_set(sl.Rate("tokens", Fraction(1, 3), "1h", unit="0.01"))


@pytest.mark.parametrize("unit", ["0.01", "0.0001", "0.000001", "0.000000000001"])
def test_no_sum_of_float_costs_is_lost_and_none_is_rounded_up_by_more_than_a_unit(open_set, unit):
    limits = open_set(sl.Budget("usd", 100_000, "1h", unit=unit))
    costs = random.Random(1)
    spent, count = 0.0, 300
    for _ in range(count):
        cost = costs.randint(1, 4000) * 2.5e-6 + costs.randint(1, 4000) * 1e-5
        spent += cost
        assert limits.debit("usd", cost)
    counted = 100_000 - float(limits.peek()["usd"].remaining)
    assert spent * (1 - 1e-8) <= counted <= spent * (1 + 1e-8) + count * float(unit)


def test_large_whole_floats_are_counted_exactly(open_set):
    limits = open_set(sl.Budget("usd", 10**15, "1h", unit="0.01"))
    limits.debit("usd", 2e12)
    limits.debit("usd", 123456789.25)
    assert limits.peek()["usd"].remaining == 10**15 - 2 * 10**12 - Decimal("123456789.25")


def test_every_debit_of_a_permit_counts_and_the_answer_says_whether_anything_had_been_left(open_set):
    limits = open_set(sl.Budget("usd", 1, "1h", unit="0.01"))
    with limits.acquire() as permit:
        assert [permit.debit("usd", used) for used in (0.9, 0.9, 20, 23.2)] == [True, True, False, False]
        assert permit.taken == {"usd": 45}
    assert not limits.debit("usd", 5)
    assert limits._segment.snapshot()["sets"][0]["limits"][0]["counts"]["taken"] == 4500
