"""What `RateLimit-Policy` promises where capacities move, or are declared in other words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import shmlimit as sl
from shmlimit._native import PolicyHeaders


def limits_of(path: Path, limit: sl.Calls | sl.Concurrency) -> sl.SetHandle:
    return sl.open(path, sl.LimitSet("api", [limit]))["api"]


def promised(headers: PolicyHeaders, permit: sl.Permit | sl.Refusal) -> str:
    assert isinstance(permit, sl.Permit)
    return dict(headers.admission(permit))["RateLimit-Policy"]


def test_the_quota_of_an_adaptive_limit_is_what_is_in_force(tmp_path: Path) -> None:
    limits = limits_of(tmp_path / "limits", sl.Concurrency("work", 9, adaptive="aimd", ceiling=32))
    permit = limits.try_acquire()
    assert isinstance(permit, sl.Permit)
    assert permit.verdicts["work"].capacity == 9
    assert promised(PolicyHeaders(limits), permit) == '"work";q=9;qu="concurrent-requests"'
    permit.release()


def test_a_rate_per_interval_is_a_quota_per_window(tmp_path: Path) -> None:
    leaky = sl.Calls("calls", 4, rate=2, interval=1, algorithm="leaky_bucket")
    limits = limits_of(tmp_path / "limits", leaky)
    assert promised(PolicyHeaders(limits), limits.try_acquire()) == '"calls";q=2;w=1;shmlimit-burst=4'


def test_keys_of_a_tier_are_promised_what_their_tier_has(tmp_path: Path) -> None:
    limits = [
        sl.Calls("requests", 2, 60, algorithm="gcra"),
        sl.Calls("daily", 10, "1d", algorithm="fixed_window"),
        sl.Calls("paced", 4, rate=2, interval=1, algorithm="leaky_bucket"),
        sl.Concurrency("in_flight", 3),
    ]
    gold = sl.Tier(
        "gold",
        {
            "requests": {"capacity": 50, "window": 3600, "burst": 5},
            "paced": {"rate": 20},
            "in_flight": {"capacity": 9},
        },
    )
    # Its burst is as large as its capacity, which no field says.
    silver = sl.Tier("silver", {"requests": {"capacity": 5}})
    segment = sl.open(tmp_path / "limits", sl.LimitSet("api", limits, keyed=10, tiers=[gold, silver]))
    api = segment["api"]
    headers = PolicyHeaders(api)
    promises = {tier: promised(headers, api.try_acquire(key=tier, tier=tier)) for tier in api.tiers}
    daily = '"daily";q=10;w=86400'
    assert promises == {
        "default": f'"requests";q=2;w=60, {daily}, "paced";q=2;w=1;shmlimit-burst=4, '
        '"in_flight";q=3;qu="concurrent-requests"',
        "gold": f'"requests";q=50;w=3600;shmlimit-burst=5, {daily}, "paced";q=20;w=1;shmlimit-burst=4, '
        '"in_flight";q=9;qu="concurrent-requests"',
        "silver": f'"requests";q=5;w=60, {daily}, "paced";q=2;w=1;shmlimit-burst=4, '
        '"in_flight";q=3;qu="concurrent-requests"',
    }
    # Where nothing was decided: the limits as they are declared.
    _, _, fields = headers.never_admissible("requests")
    assert fields == [("RateLimit-Policy", promises["default"])]


def test_an_answer_that_was_pickled_or_is_of_the_other_kind_has_no_fields(tmp_path: Path) -> None:
    limits = limits_of(tmp_path / "limits", sl.Calls("calls", 1, 60))
    headers = PolicyHeaders(limits)
    admitted, refused = limits.check(), limits.check()
    status, _, fields = headers.refusal(refused)
    assert (status, [name for name, _ in fields]) == (429, ["Retry-After", "RateLimit-Policy", "RateLimit"])
    with pytest.raises(ValueError, match="pickle"):
        headers.refusal(pickle.loads(pickle.dumps(refused)))
    with pytest.raises(ValueError, match="admitted"):
        headers.refusal(admitted)
    with pytest.raises(ValueError, match="refused"):
        headers.admission(refused)
