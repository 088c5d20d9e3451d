"""What `RateLimit-Policy` promises where capacities move, or are declared in other words."""

from __future__ import annotations

from pathlib import Path

import shmlimit as sl
from shmlimit._web.fields import Policies


def policies_of(path: Path, limit: sl.Calls | sl.Concurrency) -> tuple[sl.Limits, Policies]:
    segment = sl.open(path, sl.LimitSet("api", [limit]))
    declared = segment.declaration()["set"][0]
    return segment["api"], Policies(declared, {}, "")


def test_the_quota_of_an_adaptive_limit_is_what_is_in_force(tmp_path: Path) -> None:
    limits, policies = policies_of(tmp_path / "limits", sl.Concurrency("work", 9, adaptive="aimd", ceiling=32))
    permit = limits.try_acquire()
    assert isinstance(permit, sl.Permit)
    assert permit.verdicts["work"].capacity == 9
    assert policies.field(permit.verdicts.values()) == '"work";q=9;qu="concurrent-requests"'
    permit.release()


def test_a_rate_per_interval_is_a_quota_per_window(tmp_path: Path) -> None:
    leaky = sl.Calls("calls", 4, rate=2, interval=1, algorithm="leaky_bucket")
    _, policies = policies_of(tmp_path / "limits", leaky)
    assert policies.field(()) == '"calls";q=2;w=1;shmlimit-burst=4'


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
    policies = Policies(segment.declaration()["set"][0], {}, "")
    promised = {
        tier: policies.field(segment["api"].try_acquire(key=tier, tier=tier).verdicts.values())
        for tier in segment["api"].tiers
    }
    daily = '"daily";q=10;w=86400'
    assert promised == {
        "default": f'"requests";q=2;w=60, {daily}, "paced";q=2;w=1;shmlimit-burst=4, '
        '"in_flight";q=3;qu="concurrent-requests"',
        "gold": f'"requests";q=50;w=3600;shmlimit-burst=5, {daily}, "paced";q=20;w=1;shmlimit-burst=4, '
        '"in_flight";q=9;qu="concurrent-requests"',
        "silver": f'"requests";q=5;w=60, {daily}, "paced";q=2;w=1;shmlimit-burst=4, '
        '"in_flight";q=3;qu="concurrent-requests"',
    }
    # Where nothing was decided, as limits are declared.
    assert policies.field(()) == promised["default"]
