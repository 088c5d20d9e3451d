"""Values of the program's own classes that raise when a verb reads them: nothing stays taken or queued."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl

from .public_arguments import values
from .raising import (
    KINDS,
    Places,
    RaisingMapping,
    RaisingNumber,
    RaisingResponse,
    raising_keys,
)

ONE = {"key": "k"}

VERBS: dict[str, dict[str, Any]] = {
    "SetHandle.acquire": ONE,
    "SetHandle.acquire_async": ONE,
    "SetHandle.assign": {**ONE, "tier": "large"},
    "SetHandle.check": {**ONE, "costs": {"tokens": 1}},
    "SetHandle.check_many": {"keys": ["k"], "costs": {"tokens": 1}},
    "SetHandle.debit": {**ONE, "limit": "budget", "used": 1},
    "SetHandle.forecast": ONE,
    "SetHandle.limited": {},
    "SetHandle.override": {**ONE, "limit": "places", "capacity": 1},
    "SetHandle.overrides": ONE,
    "SetHandle.peek": ONE,
    "SetHandle.reserve": {**ONE, "costs": {"tokens": 1}, "max_delay": 0},
    "SetHandle.reset": ONE,
    "SetHandle.respect": {**ONE, "response": {"retry-after": "0.001"}, "status": 429},
    "SetHandle.throttle": {**ONE, "retry_after": 0.001},
    "SetHandle.tier": ONE,
    "SetHandle.try_acquire": ONE,
    "Permit.debit": {"limit": "budget", "used": 1},
    "Permit.respect": {"response": {"retry-after": "0.001"}, "status": 429},
    "Permit.settle": {},
    "Permit.throttled": {"retry_after": 0.001},
    "Pool.acquire": {},
    "Pool.acquire_async": {},
    "Pool.try_acquire": {},
}
"""What each verb is called with beside the value that raises."""

OF_SPENT = {"check", "check_many", "debit", "reserve"}

MAPPINGS = [RaisingMapping, lambda kind: {"places": RaisingNumber(kind)}, lambda kind: {"tokens": RaisingNumber(kind)}]

VALUES: dict[str, list[Callable[[type[BaseException]], Any]]] = {
    "actual": MAPPINGS,
    "capacity": [RaisingNumber],
    "costs": MAPPINGS,
    "key": [RaisingNumber],
    "keys": [raising_keys, lambda kind: ["k", RaisingNumber(kind)]],
    "max_delay": [RaisingNumber],
    "max_wait": [RaisingNumber],
    "overrides": MAPPINGS,
    "response": [RaisingResponse],
    "retry_after": [RaisingNumber],
    "timeout": [RaisingNumber],
    "used": [RaisingNumber],
}
"""What raises, by the name of the argument."""


def test_every_verb_that_reads_a_value_is_called() -> None:
    found = {name.partition("(")[0] for name in values("SetHandle", "Pool", "Permit", "Reservation")}
    assert found == set(VERBS)


@pytest.fixture
def places(segment_path: Path) -> Places:
    return Places.at(segment_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(values("SetHandle", "Pool", "Permit", "Reservation")))
def test_a_value_that_raises_leaves_nothing_taken(name: str, kind: type[BaseException], places: Places) -> None:
    verb, argument = name.removesuffix(")").split("(")
    # The exceptions are kept, as a task or a log would keep them: their tracebacks keep all that was in the frames.
    kept = []
    for value in VALUES["used" if argument == "named" else argument]:
        if argument == "named":
            limit = "tokens" if verb.partition(".")[2] in OF_SPENT else "places"
            given = {name: each for name, each in VERBS[verb].items() if name != "costs"} | {limit: value(kind)}
        else:
            given = {**VERBS[verb], argument: value(kind)}
        with pytest.raises(kind) as raised:
            _call(places, verb, given)
        kept.append(raised.value)
        places.assert_nothing_is_taken()
    assert kept


def _call(places: Places, verb: str, given: dict[str, Any]) -> None:
    owner, _, method = verb.partition(".")
    if owner == "Permit":
        limits, costs = (places.keyed, None) if method != "debit" else (places.spent, {"tokens": 1})
        with limits.acquire(costs, key="k") as permit:
            if method == "settle" and "actual" in given:
                permit.settle(given["actual"])
            getattr(permit, method)(**given)
        return
    if owner == "Pool":
        answer = getattr(sl.Pool([places.plain]), method)(**given)
    else:
        answer = getattr(places.spent if method in OF_SPENT else places.keyed, method)(**given)
    if isinstance(answer, sl.results.Acquisition):
        asyncio.run(_awaited(answer))
    elif inspect.isfunction(answer):
        answer(lambda: None)(key="k")


async def _awaited(acquisition: sl.results.Acquisition) -> None:
    async with acquisition:
        pass
