"""Quotas that differ by key: the tiers of a keyed set."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shmlimit as sl
from shmlimit.futures import LimitedExecutor

DAY = "1d"
DAY_IN_SECONDS = 24 * 3600


def opened(path: Path) -> sl.SetHandle:
    requests = sl.Calls("requests", 2, DAY, algorithm="fixed_window")
    gold = sl.Tier("gold", {"requests": {"capacity": 5}})
    free = sl.Tier("free", {"requests": {"capacity": 1, "window": 3600}})
    return sl.open(path / "limits", sl.LimitSet("api", [requests], keyed=100, tiers=[gold, free]))["api"]


def admitted(limits: sl.SetHandle, key: str, tier: str | None = None) -> int:
    count = 0
    while limits.check(key=key, tier=tier):
        count += 1
    return count


def test_each_key_is_limited_by_its_tier(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    assert limits.tiers == ("default", "gold", "free")
    limits.assign("rich", "gold")
    assert [admitted(limits, key) for key in ("rich", "other")] == [5, 2]
    assert (limits.tier("rich"), limits.tier("other"), limits.tier("unknown")) == ("gold", "default", "default")


def test_a_request_puts_its_key_into_the_tier_that_it_names(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    assert admitted(limits, "a", "free") == 1
    assert limits.tier("a") == "free"
    permit = limits.try_acquire(key="a", tier="gold")
    assert isinstance(permit, sl.Permit)
    assert permit.verdicts["requests"].capacity == 5
    assert limits.acquire(key="a", timeout=1, tier="gold").verdicts["requests"].remaining == 2
    assert all(limits.check_many(["a", "b"], tier="gold"))

    async def wait() -> sl.Permit:
        return await limits.acquire_async(key="a", tier="gold")

    assert asyncio.run(wait()).verdicts["requests"].remaining == 0


def test_a_reservation_puts_its_key_into_the_tier_that_it_names(tmp_path: Path) -> None:
    requests = sl.Calls("requests", 2, DAY, algorithm="gcra", burst=1)
    gold = sl.Tier("gold", {"requests": {"capacity": 24}})
    declared = sl.LimitSet("api", [requests], keyed=100, tiers=[gold])
    limits = sl.open(tmp_path / "limits", declared, clock=sl.VirtualClock())["api"]
    for key, tier, delay in [("a", None, 12 * 3600), ("b", "gold", 3600)]:
        assert limits.reserve(key=key, max_delay=DAY_IN_SECONDS, tier=tier)
        reserved = limits.reserve(key=key, max_delay=DAY_IN_SECONDS)
        assert isinstance(reserved, sl.results.Reservation)
        assert reserved.delay == delay
    assert limits.tier("b") == "gold"
    with pytest.raises(sl.UnknownName):
        limits.reserve(key="a", max_delay=0, tier="silver")


def test_a_decorated_function_names_the_tier_or_says_which_by_its_arguments(tmp_path: Path) -> None:
    limits = opened(tmp_path)

    @limits.limited(key="fixed", tier="gold", timeout=0)
    def fixed() -> str:
        return limits.tier("fixed")

    @limits.limited(key=lambda user, plan: user, tier=lambda user, plan: plan, timeout=0)
    def by_arguments(user: str, plan: str | None) -> str:
        return limits.tier(user)

    @limits.limited(key=lambda user: user, tier=lambda user: "free", timeout=0)
    async def task(user: str) -> str:
        return limits.tier(user)

    assert fixed() == "gold"
    assert by_arguments("a", "free") == "free"
    with pytest.raises(sl.AcquireTimeout):
        by_arguments("a", None)
    assert by_arguments("b", None) == "default"
    assert asyncio.run(task("c")) == "free"
    with LimitedExecutor(ThreadPoolExecutor(1), limits, key="d", tier=lambda plan: plan, timeout=0) as executor:
        assert executor.submit(lambda plan: limits.tier("d"), "gold").result() == "gold"


def test_verdicts_say_by_which_tier_it_was_decided(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    decided = limits.check(key="a", tier="gold").verdicts["requests"]
    assert (decided.tier, decided.capacity) == ("gold", 5)
    assert limits.peek(key="b")["requests"].tier == "default"
    assert pickle.loads(pickle.dumps(decided)) == decided


def test_keys_are_shown_with_their_tiers(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    limits.assign("rich", "gold")
    with sl.open(tmp_path / "limits") as segment:
        shown = segment.key_snapshot("api", "rich")
    assert shown is not None
    assert (shown["tier"], shown["tier_assigned"], shown["limits"][0]["capacity"]) == ("gold", True, 5)


def test_a_tier_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    limits = opened(tmp_path)
    with pytest.raises(sl.UnknownName, match="it has default, gold, free"):
        limits.assign("a", "silver")
    with pytest.raises(sl.UnknownName):
        limits.try_acquire(key="a", tier="silver")


def test_tiers_are_written_as_they_are_declared() -> None:
    requests = sl.Calls("requests", 10, 60)
    gold = sl.Tier("gold", {"requests": {"capacity": 1000, "burst": 200}})
    text = sl.LimitSet("api", [requests], keyed=5, tiers=[gold]).to_toml()
    assert '[[set.tier]]\nname = "gold"' in text
    with pytest.raises(sl.DeclarationError, match="only keys belong to tiers"):
        sl.LimitSet("api", [requests], tiers=[gold]).to_toml()
