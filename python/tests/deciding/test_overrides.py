"""Quotas that differ by key: single keys with capacities of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl
from shmlimit.futures import LimitedExecutor

DAY = "1d"


def declared(keyed: sl.Keyed) -> sl.LimitSet:
    requests = sl.Calls("requests", 2, DAY, algorithm="fixed_window")
    spent = sl.Rate("spent", 10, DAY, unit="0.01", algorithm="fixed_window")
    return sl.LimitSet("api", [requests, spent], keyed=keyed)


def opened(path: Path) -> sl.SetHandle:
    return sl.open(path / "limits", declared(sl.Keyed(100, overrides=True)))["api"]


def admitted(limits: sl.SetHandle, key: str, own: Mapping[str, Any] | None = None) -> int:
    count = 0
    while limits.check({"spent": 0}, key=key, overrides=own):
        count += 1
    return count


def test_a_key_is_limited_by_the_capacity_of_its_own(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    limits.override("large", "requests", 5)
    assert [admitted(limits, key) for key in ("large", "other")] == [5, 2]
    assert limits.overrides("large") == {"requests": 5}
    permit = limits.try_acquire({"requests": 0, "spent": 1}, key="large")
    assert isinstance(permit, sl.Permit)
    assert permit.verdicts["requests"].capacity == 5
    limits.override("large", "requests", None)
    assert limits.overrides("large") == limits.overrides("unknown") == {}
    assert admitted(limits, "large") == 0


def test_a_capacity_is_in_the_units_of_its_limit(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    limits.override("a", "spent", Decimal("1.25"))
    assert limits.overrides("a") == {"spent": Decimal("1.25")}
    assert limits.check({"requests": 0, "spent": Decimal("1.25")}, key="a")
    assert not limits.check({"requests": 0, "spent": Decimal("0.01")}, key="a")


def test_keys_are_shown_with_the_capacities_of_their_own(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    limits.override("a", "requests", 5)
    with sl.open(tmp_path / "limits") as segment:
        shown = segment.key_snapshot("api", "a")
    assert shown is not None
    assert [limit["override_capacity"] for limit in shown["limits"]] == [5, None]


def test_what_no_key_can_have_of_its_own_is_an_error(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    with pytest.raises(sl.RequestError, match="at least 1"):
        limits.override("a", "requests", 0)
    with pytest.raises(sl.UnknownLimit):
        limits.override("a", "typo", 5)
    without = sl.open(tmp_path / "without", declared(sl.Keyed(100)))["api"]
    with pytest.raises(sl.RequestError, match="overrides = true"):
        without.override("a", "requests", 5)
    plain = sl.open(tmp_path / "plain", sl.LimitSet("api", [sl.Calls("requests", 2, DAY)]))["api"]
    with pytest.raises(sl.InvalidKey):
        plain.override("a", "requests", 5)


def test_a_set_has_tiers_or_overrides_and_never_both(tmp_path: Path) -> None:
    gold = sl.Tier("gold", {"requests": {"capacity": 5}})
    requests = sl.Calls("requests", 2, DAY)
    both = sl.LimitSet("api", [requests], keyed=sl.Keyed(100, overrides=True), tiers=[gold])
    with pytest.raises(sl.DeclarationError, match="not both"):
        sl.open(tmp_path / "both", both)
    tiered = sl.open(tmp_path / "tiered", sl.LimitSet("api", [requests], keyed=100, tiers=[gold]))["api"]
    with pytest.raises(sl.RequestError, match="in place of tiers"):
        tiered.check(key="a", overrides={"requests": 5})
    with pytest.raises(sl.UnknownName, match="in place of tiers"):
        opened(tmp_path).check(SPENT, key="a", tier="gold")


def test_a_call_says_which_capacities_its_key_has(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    assert admitted(limits, "a", {"requests": 5}) == 5
    assert limits.overrides("a") == {"requests": 5}
    assert admitted(limits, "a") == 0, "it keeps it"
    assert admitted(limits, "a", {"spent": Decimal("1.25")}) == 0, "also beside another"
    assert limits.overrides("a") == {"requests": 5, "spent": Decimal("1.25")}
    assert admitted(limits, "a", {"requests": 6, "spent": None}) == 1
    assert limits.overrides("a") == {"requests": 6}
    assert admitted(limits, "a", {"requests": None}) == 0
    assert limits.overrides("a") == {}
    assert admitted(limits, "other", {}) == 2


SPENT = {"spent": 0}
FIVE = {"requests": 5}


@pytest.mark.parametrize(
    "take",
    [
        lambda limits: limits.try_acquire(SPENT, key="a", overrides=FIVE),
        lambda limits: limits.acquire(SPENT, key="a", timeout=0, overrides=FIVE),
        lambda limits: asyncio.run(awaited(limits)),
        lambda limits: asyncio.run(entered(limits)),
        lambda limits: limits.reserve(SPENT, key="a", max_delay=0, overrides=FIVE),
        lambda limits: limits.check_many(["a"], SPENT, overrides=FIVE)[0],
        lambda limits: limits.limited(costs=SPENT, key="a", timeout=0, overrides=FIVE)(lambda: True)(),
        lambda limits: limits.limited(costs=SPENT, key="a", timeout=0, overrides=lambda: FIVE)(lambda: True)(),
        lambda limits: executed(limits),
    ],
    ids=["try", "acquire", "await", "async with", "reserve", "many", "limited", "by arguments", "executor"],
)
def test_every_call_that_takes_a_key_takes_its_capacities(
    tmp_path: Path, take: Callable[[sl.SetHandle], object]
) -> None:
    limits = opened(tmp_path)
    assert [succeeds(take, limits) for _ in range(6)] == [True] * 5 + [False]


def succeeds(take: Callable[[sl.SetHandle], object], limits: sl.SetHandle) -> bool:
    try:
        return bool(take(limits))
    except sl.AcquireTimeout:
        return False


async def awaited(limits: sl.SetHandle) -> sl.Permit:
    return await limits.acquire_async(SPENT, key="a", timeout=0, overrides=FIVE)


async def entered(limits: sl.SetHandle) -> bool:
    async with limits.acquire_async(SPENT, key="a", timeout=0, overrides=FIVE):
        return True


def executed(limits: sl.SetHandle) -> bool:
    threads = ThreadPoolExecutor(1)
    with LimitedExecutor(threads, limits, SPENT, key="a", timeout=0, overrides=lambda: FIVE) as executor:
        return executor.submit(lambda: True).result()


def take_in_turns(path: Path, capacity: int, turns: Any, results: Any) -> None:
    limits = sl.open(path / "limits")["held"]
    admissions = []
    for _ in range(200):
        turns.wait(timeout=60)
        admissions.append(bool(limits.try_acquire(key="a", overrides={"in_flight": capacity})))
    results.put((capacity, admissions))


def test_processes_that_say_different_capacities_are_each_decided_by_their_own(tmp_path: Path) -> None:
    held = sl.LimitSet("held", [sl.Concurrency("in_flight", 1)], keyed=sl.Keyed(100, overrides=True), holds=64)
    limits = sl.open(tmp_path / "limits", held)["held"]
    permits = [limits.try_acquire(key="a", overrides={"in_flight": 4}) for _ in range(4)]
    assert all(permits)
    spawn = multiprocessing.get_context("spawn")
    turns, results = spawn.Barrier(2), spawn.Queue()
    workers = [spawn.Process(target=take_in_turns, args=(tmp_path, own, turns, results)) for own in (3, 9)]
    for worker in workers:
        worker.start()
    said = dict(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(timeout=60)
    # The worker that is admitted gives each permit back at once, so four or five are always held.
    assert said == {3: [False] * 200, 9: [True] * 200}
    assert limits.overrides("a")["in_flight"] in (3, 9), "the last that was said"
    permits.clear()


def test_a_waiter_is_served_by_the_capacity_that_another_call_says(tmp_path: Path) -> None:
    held = sl.LimitSet("held", [sl.Concurrency("in_flight", 1)], keyed=sl.Keyed(100, overrides=True), holds=64)
    limits = sl.open(tmp_path / "limits", held)["held"]

    async def wait() -> None:
        with limits.acquire(key="a"):
            waiting = asyncio.ensure_future(limits.acquire_async(key="a", timeout=60))
            await asyncio.sleep(0)
            assert limits.acquire(key="a", timeout=60, overrides={"in_flight": 3})
            assert await waiting

    asyncio.run(wait())


def test_a_call_that_names_what_no_key_can_have_is_an_error(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    for own in ({"requests": 0}, {"requests": -1}, {"requests": 2**64 - 1}, {"spent": Decimal("0.001")}):
        with pytest.raises(sl.RequestError):
            limits.check(SPENT, key="a", overrides=own)
    with pytest.raises(sl.UnknownLimit):
        limits.try_acquire(SPENT, key="a", overrides={"typo": 5})
    with pytest.raises(sl.NeverAdmissible):
        limits.check({"requests": 2, "spent": 0}, key="a", overrides={"requests": 1})
    not_a_mapping: Any = 5
    for take in (limits.check, limits.acquire_async, limits.limited):
        with pytest.raises(TypeError, match="names no limits"):
            take(key="a", overrides=not_a_mapping)
    assert limits.overrides("a") == {}
    without = sl.open(tmp_path / "without", declared(sl.Keyed(100)))["api"]
    with pytest.raises(sl.RequestError, match="overrides = true"):
        without.check(SPENT, key="a", overrides=FIVE)
    assert without.check(SPENT, key="a", overrides={"requests": None})
    plain = sl.open(tmp_path / "plain", sl.LimitSet("api", [sl.Calls("requests", 2, DAY)]))["api"]
    with pytest.raises(sl.InvalidKey):
        plain.check(overrides=FIVE)
    with pytest.raises(sl.InvalidKey):
        limits.check(SPENT, overrides=FIVE)


def test_a_set_without_the_limit_skips_its_capacity_where_it_skips_names(tmp_path: Path) -> None:
    sl.open(tmp_path / "limits", declared(sl.Keyed(100, overrides=True)))
    lenient = sl.open(tmp_path / "limits", strict=False)["api"]
    with pytest.warns(sl.UnknownLimitWarning, match="typo"):
        assert lenient.check(SPENT, key="a", overrides={"typo": 5, "requests": 3})
    assert lenient.overrides("a") == {"requests": 3}


def test_what_a_call_takes_travels_to_other_processes() -> None:
    from shmlimit._by_arguments import ByArguments

    taken = ByArguments(SPENT, "a", None, FIVE).of((), {})
    assert pickle.loads(pickle.dumps(taken)) == taken == (SPENT, "a", None, FIVE)
