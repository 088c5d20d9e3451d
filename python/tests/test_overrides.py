"""Quotas that differ by key: capacities that single keys have of their own."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

import shmlimit as sl

DAY = "1d"


def declared(keyed: sl.Keyed) -> sl.LimitSet:
    requests = sl.Calls("requests", 2, DAY, algorithm="fixed_window")
    spent = sl.Rate("spent", 10, DAY, unit="0.01", algorithm="fixed_window")
    return sl.LimitSet("api", [requests, spent], keyed=keyed)


def opened(path: Path) -> sl.Limits:
    return sl.open(path / "limits", declared(sl.Keyed(100, overrides=True)))["api"]


def admitted(limits: sl.Limits, key: str) -> int:
    count = 0
    while limits.check({"spent": 0}, key=key):
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
    with pytest.raises(sl.NotKeyed):
        plain.override("a", "requests", 5)
