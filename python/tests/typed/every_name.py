"""Uses every public name as programs do: it runs, and type checkers find nothing in it.

Run it with a directory, in which it creates its files.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import assert_type

import shmlimit as sl

REQUESTS = sl.Calls("requests", 500, "60s", algorithm="sliding_window")
TOKENS = sl.Rate("tokens", 200_000, "60s", algorithm="token_bucket")
SPENT = sl.Budget("spent", "99.95", "calendar:day", unit="0.01")
IN_FLIGHT = sl.Concurrency("in_flight", 16, lease="30s")
GOLD = sl.Tier("gold", {"requests": {"capacity": 5000}})

ERRORS: dict[type[sl.Error], str] = {
    sl.AlreadyReleased: "released before",
    sl.AlreadySettled: "settled before",
    sl.ConfigMismatch: "declared otherwise",
    sl.CostRequired: "a rate without a cost",
    sl.DeclarationError: "declared wrongly",
    sl.InUse: "others use it",
    sl.InvalidAmount: "no amount",
    sl.InvalidKey: "no key",
    sl.InvalidSegment: "another file",
    sl.LockStuck: "a process is stopped",
    sl.NeverAdmissible: "more than there is",
    sl.NoSpace: "no room",
    sl.NotFound: "no file",
    sl.PermissionDenied: "of another user",
    sl.PermitError: "of permits",
    sl.Reclaimed: "the lease ran out",
    sl.Removed: "removed",
    sl.RequestError: "of requests",
    sl.SegmentClosed: "closed",
    sl.SegmentError: "of files",
    sl.UnknownLimit: "no such limit",
    sl.UnknownName: "no such name",
}


def declare(directory: Path) -> sl.Segment:
    assert_type(REQUESTS.bound, str | None)
    declared = [
        sl.LimitSet("openai", [REQUESTS, TOKENS, IN_FLIGHT], metadata={"region": "us-east-1"}, labels=True),
        sl.LimitSet(
            "tenants",
            [REQUESTS, SPENT],
            keyed=sl.Keyed(1000, when_full="evict_least_used"),
            tiers=[GOLD],
        ),
        sl.LimitSet(
            "model",
            [sl.Rate("tokens", 200_000, "60s", scope="all_keys")],
            keyed=1000,
            tiers=[sl.Tier("gold", weight=10)],
        ),
        sl.LimitSet("partners", [REQUESTS], keyed=sl.Keyed(1000, overrides=True)),
    ]
    return sl.open(directory / "typed.limits", declared, participants=64, lock_timeout=1.0)


def change(partners: sl.SetHandle) -> None:
    partners.override("acme", "requests", 500)
    assert_type(partners.overrides("acme"), dict[str, int | Decimal])
    partners.override("acme", "requests", None)


def take(limits: sl.SetHandle) -> None:
    result = limits.try_acquire({"tokens": 1500})
    assert_type(result, sl.Permit | sl.Refusal)
    if result:
        # A permit is true and a refusal false, which narrows the type.
        assert_type(result, sl.Permit)
        settlement = result.settle(tokens=900)
        assert_type(settlement, sl.results.Settlement)
        result.heartbeat()
        result.release()
    else:
        assert_type(result, sl.Refusal)
        print(result.binding, result.reason, result.retry_after)
    with limits.acquire({"tokens": 10}, timeout=5) as permit:
        assert_type(permit, sl.Permit)
        permit.settle({"tokens": 5})
    with limits.acquire({"tokens": 10}) as permit:
        assert_type(permit.settle_all_unused(), sl.results.Settlement)
    with limits.try_acquire(tokens=10) as permit:
        permit.settle(tokens=10)
    assert_type(limits.acquire(tokens=1, timeout=5), sl.Permit).release()
    verdicts = limits.peek({"tokens": 1})
    assert_type(verdicts, dict[str, sl.results.Verdict])
    forecasts = limits.forecast()
    assert_type(forecasts, dict[str, sl.results.Forecast])
    try:
        limits.acquire({"tokens": 10**9})
    except sl.NeverAdmissible as error:
        assert isinstance(error, ValueError)


def refuse(directory: Path) -> None:
    limits = sl.open(directory / "one.limits", sl.LimitSet("one", [sl.Concurrency("c", 1)]))["one"]
    own: sl.Segment = sl.anonymous(sl.LimitSet("own", [sl.Concurrency("c", 1)]), lock_timeout=1.0)
    assert own["own"].try_acquire()
    with limits.acquire():
        try:
            limits.acquire(timeout=0)
        except sl.AcquireTimeout as error:
            assert isinstance(error, sl.Refused)
            assert isinstance(error, TimeoutError)
            assert_type(error.refusal, sl.Refusal | None)
    sl.remove(limits.path, force=True)


def hold_back(limits: sl.SetHandle) -> None:
    permit = limits.acquire({"tokens": 10})
    assert_type(permit.respect({"Retry-After": "30"}, status=200, max_wait=60), bool)
    permit.throttled(retry_after=0)
    limits.throttle(timedelta(seconds=0))
    assert_type(limits.respect({"Retry-After": "0"}, status=429, max_wait=timedelta(minutes=1)), bool)


def count(tenants: sl.SetHandle) -> None:
    checked = tenants.check(key="acme")
    assert_type(checked, sl.results.Checked)
    assert_type(tenants.check_many(["acme", b"globex", 7]), list[sl.results.Checked])
    tenants.debit("spent", "1.25", key="acme")
    tenants.reset("requests", key="acme")
    tenants.throttle(0, key="acme")
    tenants.respect({}, status=200, key="acme")


def sort_into_tiers(tenants: sl.SetHandle) -> None:
    @tenants.limited(key=lambda tenant: tenant, tier=lambda tenant: "gold", overrides=lambda tenant: None)
    def work(tenant: str) -> str:
        return tenants.tier(tenant)

    assert work("acme") == "gold"
    assert_type(tenants.check(key="acme", overrides={"requests": None}).verdicts["requests"].tier, str)


def reserve(directory: Path) -> None:
    paced = sl.open(directory / "paced.limits", sl.LimitSet("paced", [sl.Calls("c", 10, "1h", algorithm="gcra")]))[
        "paced"
    ]
    reserved = paced.reserve(max_delay=60, tier=None)
    if reserved:
        assert_type(reserved, sl.results.Reservation)
        assert_type(reserved.delay, float)
        reserved.cancel()


def decorate(limits: sl.SetHandle) -> None:
    @limits.limited(costs={"tokens": 1}, timeout=5)
    def length(text: str) -> int:
        return len(text)

    @limits.limited(costs=lambda words: {"tokens": len(words)})
    def each(words: list[str]) -> Iterator[str]:
        yield from words

    assert_type(length("four"), int)
    assert list(each(["a", "b"])) == ["a", "b"]


async def wait(limits: sl.SetHandle) -> None:
    acquisition = limits.acquire_async({"tokens": 1}, timeout=5)
    assert_type(acquisition, sl.results.Acquisition)
    permit = await acquisition
    assert_type(permit, sl.Permit)
    async with permit:
        permit.settle(tokens=1)
    async with limits.acquire_async({"tokens": 1}) as other:
        assert_type(other, sl.Permit)
    async with limits.try_acquire({"tokens": 1}) as tried:
        assert_type(tried, sl.Permit)


def watch(directory: Path) -> None:
    declared = sl.LimitSet("watched", [sl.Calls("c", 1, "1h")])
    with sl.open(directory / "watched.limits", declared, log_requests=True) as segment:
        limits = segment["watched"].labelled("nightly-import")
        assert_type(limits, sl.SetHandle)
        assert_type(limits.label, str | None)
        assert_type(sl.Pool([limits]).labelled("nightly-export"), sl.Pool)
        assert limits.check()
        assert not limits.check()


def choose(limits: sl.SetHandle) -> None:
    pool = sl.Pool([limits], "least_loaded", failover=True)
    with pool.acquire({"tokens": 1}) as permit:
        print(permit.metadata["region"])


def move_time(directory: Path) -> None:
    clock = sl.VirtualClock()
    with sl.open(directory / "time.limits", sl.LimitSet("t", [sl.Calls("c", 1, "1h")]), clock=clock) as segment:
        assert segment["t"].check()
        clock.advance(3600)
        assert segment["t"].check()


def main(directory: Path) -> None:
    warnings.simplefilter("error", sl.UnknownLimitWarning)
    warnings.simplefilter("error", sl.BlockingAcquireWarning)
    segment = declare(directory)
    assert_type(segment["openai"], sl.SetHandle)
    take(segment["openai"])
    hold_back(segment["openai"])
    change(segment["partners"])
    refuse(directory)
    count(segment["tenants"])
    sort_into_tiers(segment["tenants"])
    reserve(directory)
    decorate(segment["openai"])
    asyncio.run(wait(segment["openai"]))
    choose(segment["openai"])
    watch(directory)
    move_time(directory)
    for name, limits in segment.items():
        print(name, limits.limit_names, len(ERRORS))
    print(sl.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
