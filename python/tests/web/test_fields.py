"""What `RateLimit-Policy` promises where capacities move, or are declared in other words."""

from __future__ import annotations

from pathlib import Path

import shmlimit as sl
from shmlimit._web.fields import Policies


def policies_of(path: Path, limit: sl.Calls | sl.Concurrency) -> tuple[sl.Limits, Policies]:
    segment = sl.open(path, sl.LimitSet("api", [limit]))
    declared = segment.declaration()["set"][0]["limit"]
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
