"""Limits that all keys of a set share, beside those of each key."""

from __future__ import annotations

import asyncio
import pickle
from decimal import Decimal
from pathlib import Path

import pytest
from observing import DEADLINE, queued, run_role, until

import shmlimit as sl
from shmlimit._native import PolicyHeaders

DAY = "1d"


def tenants(**more: sl.Limit) -> sl.LimitSet:
    """Three requests a day for each tenant, and a quota that all of them share."""
    requests = sl.Calls("requests", 3, DAY, algorithm="fixed_window")
    return sl.LimitSet("model", [requests, *more.values()], keyed=100)


def opened(path: Path, *limits: sl.Limit) -> sl.SetHandle:
    declared = tenants(**{limit.name: limit for limit in limits})
    return sl.open(path / "limits", declared)["model"]


def upstream(capacity: int) -> sl.Calls:
    return sl.Calls("upstream", capacity, DAY, algorithm="fixed_window", scope="all_keys")


def test_a_tenant_is_not_charged_for_what_the_quota_of_all_refuses(tmp_path: Path) -> None:
    limits = opened(tmp_path, upstream(4))
    assert [bool(limits.check(key=key)) for key in "aaab"] == [True] * 4
    refused = limits.check(key="b")
    assert not refused
    assert refused.binding == "upstream"
    verdicts = refused.verdicts
    assert (verdicts["upstream"].scope, verdicts["requests"].scope) == ("all_keys", "key")
    assert verdicts["requests"].remaining == 2
    assert pickle.loads(pickle.dumps(verdicts)) == verdicts
    assert limits.peek(key="b")["requests"].remaining == 2


@pytest.mark.parametrize(
    "algorithm", ["gcra", "token_bucket", "fixed_window", "sliding_window", "sliding_window_counter"]
)
def test_what_was_not_used_comes_back_to_all(tmp_path: Path, algorithm: sl.Algorithm) -> None:
    tokens = sl.Rate("tokens", 100, DAY, algorithm=algorithm, scope="all_keys")
    limits = opened(tmp_path, tokens)
    with limits.acquire({"tokens": 100}, key="a") as permit:
        assert not limits.check({"tokens": 1}, key="b")
        permit.settle(tokens=30)
    assert limits.peek({"tokens": 1}, key="b")["tokens"].remaining == 70


def test_a_budget_is_spent_by_all(tmp_path: Path) -> None:
    dollars = sl.Budget("dollars", 1, DAY, unit="0.01", scope="all_keys")
    limits = opened(tmp_path, dollars)
    for key in "abc":
        with limits.acquire(key=key) as permit:
            permit.debit("dollars", 0.4)
    refused = limits.try_acquire(key="d")
    assert isinstance(refused, sl.Refusal)
    assert refused.binding == "dollars"


def test_a_reset_of_a_key_leaves_alone_what_all_keys_have(tmp_path: Path) -> None:
    limits = opened(tmp_path, upstream(10))
    assert limits.check(key="a")
    limits.reset(key="a")
    left = {name: verdict.remaining for name, verdict in limits.peek(key="a").items()}
    assert left == {"requests": 3, "upstream": 9}
    with pytest.raises(sl.RequestError, match="reset it for the set"):
        limits.reset("upstream", key="a")
    limits.reset()
    assert limits.peek(key="a")["upstream"].remaining == 10


def test_places_are_shared_and_handed_over(tmp_path: Path) -> None:
    limits = opened(tmp_path, sl.Concurrency("in_flight", 1, scope="all_keys"))
    segment = sl.open(tmp_path / "limits")

    async def hand_over() -> list[str]:
        order: list[str] = []

        async def use(key: str) -> None:
            async with limits.acquire_async(key=key, timeout=DEADLINE):
                order.append(key)

        async with limits.acquire_async(key="first"):
            waiting = []
            for key in ("second", "third"):
                waiting.append(asyncio.create_task(use(key)))
                await asyncio.to_thread(until, lambda: queued(segment, "model") == len(waiting), f"{key} in the queue")
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(hand_over()) == ["second", "third"]


HOLDER = """
import signal, sys
import shmlimit as sl

with sl.open(sys.argv[1])["model"].acquire(key="a"):
    print("held", flush=True)
    signal.pause()
"""


def test_a_place_of_a_killed_tenant_goes_to_another(tmp_path: Path) -> None:
    limits = opened(tmp_path, sl.Concurrency("in_flight", 1, scope="all_keys"))
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    process = run_role(script, tmp_path / "limits")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not limits.try_acquire(key="b")
        process.kill()
        with limits.acquire(key="b", timeout=DEADLINE) as permit:
            assert permit.verdicts["in_flight"].scope == "all_keys"
    finally:
        process.kill()
        process.communicate()


def test_fields_tell_a_client_nothing_of_the_others_but_when_to_come_back(tmp_path: Path) -> None:
    limits = opened(tmp_path, upstream(1))
    headers = PolicyHeaders(limits)
    admitted, refused = limits.check(key="a"), limits.check(key="b")
    fields = dict(headers.admission(admitted))
    assert fields["RateLimit-Policy"] == '"requests";q=3;w=86400'
    assert "upstream" not in fields["RateLimit"]
    status, _, of_refusal = headers.refusal(refused)
    assert status == 429
    assert int(dict(of_refusal)["Retry-After"]) > 0
    assert "upstream" not in str(dict(of_refusal).get("RateLimit")) + dict(of_refusal)["RateLimit-Policy"]


def test_a_snapshot_has_what_is_left(tmp_path: Path) -> None:
    limits = opened(tmp_path, sl.Rate("dollars", 10, DAY, unit=Decimal("0.01"), scope="all_keys"))
    assert limits.check({"dollars": 2.5}, key="a")
    (shown,) = sl.open(tmp_path / "limits").snapshot()["sets"]
    of_all = next(limit for limit in shown["limits"] if limit["name"] == "dollars")
    assert (of_all["scope"], of_all["unit"], of_all["remaining"]) == ("all_keys", "0.01", 750)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (sl.LimitSet("a", [upstream(1)]), "without keys"),
        (
            sl.LimitSet("a", [upstream(1), sl.Calls("c", 1, DAY, prefix={"ipv4": 24, "ipv6": 48})], keyed=10),
            "networks",
        ),
        (
            sl.LimitSet("a", [upstream(1)], keyed=10, tiers=[sl.Tier("gold", {"upstream": {"capacity": 2}})]),
            "whatever their tiers",
        ),
    ],
)
def test_what_does_not_go_together_is_an_error(tmp_path: Path, declared: sl.LimitSet, problem: str) -> None:
    with pytest.raises(sl.DeclarationError, match=problem):
        sl.open(tmp_path / "limits", declared)


def test_it_is_not_done_to_a_single_key(tmp_path: Path) -> None:
    requests = sl.Calls("requests", 3, DAY)
    declared = sl.LimitSet("model", [requests, upstream(4)], keyed=sl.Keyed(100, overrides=True))
    limits = sl.open(tmp_path / "limits", declared)["model"]
    with pytest.raises(sl.RequestError, match="all keys"):
        limits.override("a", "upstream", 2)
    with pytest.raises(sl.RequestError, match="upstream"):
        limits.reserve(key="a", max_delay=1)
    assert limits.check(key="a")
