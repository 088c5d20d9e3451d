"""Costs as a mapping, as keywords, and as both: in every call that takes them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl
from shmlimit import _native

SETS = [
    sl.LimitSet("plain", [sl.Rate("tokens", 100, "1h"), sl.Calls("requests", 100, "1h")]),
    sl.LimitSet("parts", [sl.Rate("dollars", 100, "1h", unit="0.01")]),
    sl.LimitSet("clashing", [sl.Rate(name, 100, "1h") for name in ("key", "timeout", "heartbeat", "tier", "costs")]),
]

CALLS: dict[str, Callable[..., object]] = {
    "try_acquire": lambda limits, *costs, **named: limits.try_acquire(*costs, **named),
    "acquire": lambda limits, *costs, **named: limits.acquire(*costs, timeout=0, **named),
    "acquire_async": lambda limits, *costs, **named: asyncio.run(_awaited(limits, *costs, **named)),
    "check": lambda limits, *costs, **named: limits.check(*costs, **named),
    "check_many": lambda limits, *costs, **named: limits.check_many([], *costs, **named),
    "peek": lambda limits, *costs, **named: limits.peek(*costs, **named),
    "reserve": lambda limits, *costs, **named: limits.reserve(*costs, max_delay=0, **named),
    "Pool.try_acquire": lambda limits, *costs, **named: sl.Pool([limits]).try_acquire(*costs, **named),
    "Pool.acquire": lambda limits, *costs, **named: sl.Pool([limits]).acquire(*costs, timeout=0, **named),
    "Pool.acquire_async": lambda limits, *costs, **named: asyncio.run(_awaited(sl.Pool([limits]), *costs, **named)),
}
# The other two take nothing here: `check_many` is given no keys, and `peek` only looks.
TAKE = [name for name in CALLS if name not in ("check_many", "peek")]


async def _awaited(limits: Any, *costs: Any, **named: Any) -> sl.Permit:
    return await limits.acquire_async(*costs, timeout=0, **named)


class OnlyItems:
    """The least that counts as a mapping."""

    def __init__(self, **named: int) -> None:
        self._named = named

    def items(self) -> Any:
        return self._named.items()


@pytest.fixture
def segment(segment_path: Path) -> Iterator[sl.Segment]:
    with sl.open(segment_path, SETS) as segment:
        yield segment


def taken(limits: sl.SetHandle) -> dict[str, Any]:
    return {name: 100 - forecast.spendable for name, forecast in limits.forecast().items()}


def test_every_call_that_takes_costs_takes_keywords() -> None:
    found = set()
    for owner, prefix in ((sl.SetHandle, ""), (sl.Pool, "Pool.")):
        for name in dir(owner):
            if name.startswith("_") or not callable(getattr(owner, name)):
                continue
            parameters = inspect.signature(getattr(owner, name)).parameters
            if "costs" in parameters and name != "limited":
                assert parameters["named"].kind is inspect.Parameter.VAR_KEYWORD, name
                found.add(prefix + name)
    assert found == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "costs",
    [([{"tokens": 7, "requests": 2}], {}), ([], {"tokens": 7, "requests": 2}), ([{"tokens": 7}], {"requests": 2})],
)
def test_both_forms_take_the_same(segment: sl.Segment, name: str, costs: Any) -> None:
    limits, (positional, named) = segment["plain"], costs
    assert CALLS[name](limits, *positional, **named) is not None
    assert taken(limits) == ({"tokens": 7, "requests": 2} if name in TAKE else {"tokens": 0, "requests": 0})


def test_a_keyword_is_an_amount_like_any(segment: sl.Segment) -> None:
    parts = segment["parts"]
    assert parts.check(dollars="1.25").taken == {"dollars": parts.check({"dollars": "1.25"}).taken["dollars"]}
    with pytest.raises(sl.InvalidAmount):
        parts.check(dollars="1.255")
    with pytest.raises(sl.NeverAdmissible):
        parts.check(dollars=101)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_keyword_that_is_no_limit_is_never_skipped(segment: sl.Segment, name: str, strict: bool) -> None:
    limits = sl.open(segment.path, strict=strict)["plain"]
    with pytest.raises(TypeError, match=r"no parameter 'timout'.*it has (tokens, requests|requests, tokens)"):
        CALLS[name](limits, {"tokens": 1}, timout=3)
    assert taken(limits) == {"tokens": 0, "requests": 0}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [dict, OnlyItems])
def test_a_limit_that_is_named_twice_is_an_error(segment: sl.Segment, name: str, kind: Callable[..., Any]) -> None:
    limits = segment["plain"]
    with pytest.raises(TypeError, match=r"'tokens' is named twice"):
        CALLS[name](limits, kind(tokens=1) if name != "acquire_async" else {"tokens": 1}, tokens=1)
    assert taken(limits) == {"tokens": 0, "requests": 0}


def test_a_limit_with_the_name_of_a_parameter_is_named_in_the_mapping(segment: sl.Segment) -> None:
    limits = segment["clashing"]
    amounts: Mapping[str, int] = dict.fromkeys(limits.limit_names, 3)
    with limits.acquire(amounts, timeout=0) as permit:
        assert permit.taken == amounts
        settlement = permit.settle(key=1, timeout=1, heartbeat=1, tier=1, costs=1)
        assert settlement.refunded == dict.fromkeys(amounts, 2)
    with pytest.raises(sl.InvalidKey):
        limits.acquire(key=3, timeout=0)
    with pytest.raises(TypeError, match="heartbeat"):
        limits.acquire(heartbeat=3)


def test_settle_takes_both_forms(segment: sl.Segment) -> None:
    limits = segment["plain"]
    for settle in (
        lambda permit: permit.settle({"tokens": 2}),
        lambda permit: permit.settle(tokens=2),
        lambda permit: permit.settle({"tokens": 2}, requests=1),
    ):
        with limits.acquire(tokens=5) as permit:
            assert settle(permit).refunded["tokens"] == 3


def test_the_native_module_documents_the_keywords() -> None:
    for owner in (_native.SetHandle, _native.Pool):
        assert "named: Costs as keywords" in inspect.getdoc(owner.try_acquire)
