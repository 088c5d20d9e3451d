"""The fields `RateLimit-Policy`, `RateLimit` and `Retry-After`, as draft-ietf-httpapi-ratelimit-headers-11 has them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from shmlimit import Checked, Refusal, Verdict

# The tier of keys that are in no other.
_DEFAULT_TIER = "default"

# The largest integer of a structured field.
_LARGEST = 999_999_999_999_999

_NANOSECONDS = {
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}


class Policies:
    """How the limits of a set are told to clients, by one of its declarations: to those of each tier as it has them."""

    def __init__(self, declared: Mapping[str, Any], quota_units: Mapping[str, str], prefix: str) -> None:
        """Describes the limits of a set.

        Args:
            declared: The set, with every default written out, of tiers too.
            quota_units: By rate limit or budget, the unit in which clients are told of it.
            prefix: What stands before the names of limits.
        """
        self._prefix = prefix
        self._kinds: dict[str, str] = {}
        self.count_networks = False
        """Whether the limits are those of the networks of an address, which are taken and not held."""
        self._items: dict[str, dict[str, str]] = {_DEFAULT_TIER: {}}
        self._moving: set[str] = set()
        changed = {tier["name"]: tier.get("limits", {}) for tier in declared.get("tier", [])}
        for limit in declared.get("limit", []):
            name = limit["name"]
            self.count_networks = self.count_networks or "prefix" in limit
            for tier, changes in {_DEFAULT_TIER: {}, **changed}.items():
                item = _item({**limit, **changes.get(name, {})}, quota_units.get(name), self.name(name))
                if item is not None:
                    self._items.setdefault(tier, {})[name] = item
            if name in self._items[_DEFAULT_TIER]:
                self._kinds[name] = limit["kind"]
                if "adaptive" in limit:
                    self._moving.add(name)

    def field(self, verdicts: Iterable[Verdict]) -> str:
        """`RateLimit-Policy`: what the limits promise in general to keys of the tier that was decided by.

        A capacity that moves is told as it was for the verdict. Empty where there is nothing to tell.
        """
        verdicts = list(verdicts)
        tier = verdicts[0].tier if verdicts else _DEFAULT_TIER
        # A tier that this process has not heard of yet is told as soon as it has.
        items = self._items.get(tier, self._items[_DEFAULT_TIER])
        if self._moving:
            moved = {
                verdict.limit: _concurrency_item(self.name(verdict.limit), verdict.capacity)
                for verdict in verdicts
                if verdict.limit in self._moving and verdict.capacity is not None
            }
            items = {**items, **moved}
        return ", ".join(items.values())

    def name(self, limit: str) -> str:
        """The name of a limit's policy, with all that a structured field cannot hold written as in URLs."""
        encoded = bytearray()
        for byte in f"{self._prefix}{limit}".encode():
            encoded += b"%%%02X" % byte if byte == 0x25 or not 0x20 <= byte < 0x7F else bytes([byte])
        return encoded.decode("ascii")

    def standing(self, verdicts: Iterable[Verdict], *, admitted: bool) -> str:
        """`RateLimit`: how the limits stand. Empty where there is nothing to tell."""
        items = []
        for verdict in verdicts:
            kind = self._kinds.get(verdict.limit)
            if kind is None:
                continue
            item = f"{_quoted(self.name(verdict.limit))};r={_whole(verdict.remaining)}"
            wait = _effective_window(kind, verdict, admitted=admitted)
            items.append(item if wait is None else f"{item};t={whole_seconds(wait)}")
        return ", ".join(items)


def retry_after(refusal: Refusal | Checked) -> int:
    """Whole seconds: the longest that any limit which refused, or binds those who wait before, knows to take.

    1 where none of them knows, as is so with concurrency: without a number, clients would be back at once. No window in
    the `RateLimit` field beside it ends later, as the draft asks.
    """
    waits = [verdict.retry_after for verdict in refusal.verdicts.values()]
    longest = max((wait for wait in [refusal.retry_after, *waits] if wait is not None), default=0.0)
    return max(1, whole_seconds(longest))


def whole_seconds(wait: float) -> int:
    """Rounded up, so that nobody comes back too early."""
    return _LARGEST if wait >= _LARGEST else math.ceil(wait)


def _item(limit: Mapping[str, Any], unit: str | None, name: str) -> str | None:
    """What one limit promises: `"requests";q=200;w=1`."""
    kind, capacity = limit["kind"], limit["capacity"]
    burst, window = limit.get("burst", capacity), limit.get("window")
    if "rate" in limit and capacity != "unlimited":
        # A leaky bucket, of which the capacity is the bucket.
        capacity, burst, window = limit["rate"], capacity, limit["interval"]
    if capacity == "unlimited" or limit.get("shadow", False):
        return None
    if kind == "concurrency":
        # Where the capacity moves and nothing was asked, as far as it may.
        quota = limit.get("ceiling", capacity) if "adaptive" in limit else capacity
        return _concurrency_item(name, quota)
    if kind != "calls" and unit is None:
        return None
    item = f"{_quoted(name)};q={_whole(capacity)}"
    if kind != "calls" and unit is not None:
        item += f";qu={_quoted(unit)}"
    seconds = None if window is None else _window_seconds(window)
    if seconds is not None:
        item += f";w={min(seconds, _LARGEST)}"
    # Unless it says otherwise, a limit admits its quota at once.
    if burst != capacity:
        item += f";shmlimit-burst={_whole(burst)}"
    return item


def _concurrency_item(name: str, quota: float | str | Decimal) -> str:
    return f'{_quoted(name)};q={_whole(quota)};qu="concurrent-requests"'


def _effective_window(kind: str, verdict: Verdict, *, admitted: bool) -> float | None:
    """For how long no more than what remains can be used.

    A refusal gives it for those limits only that refused, so that none ends later than `Retry-After`.
    """
    if kind == "concurrency":
        return None
    if admitted:
        return verdict.reset_after
    return None if verdict.admitted else verdict.retry_after


def _window_seconds(window: str) -> int | None:
    """The length of a window, where it is a whole number of seconds and always the same: the field knows no others."""
    if window.startswith("calendar:"):
        return {"calendar:day": 86_400, "calendar:week": 604_800}.get(window)
    parts = re.findall(r"(\d+)([a-z]+)", window)
    seconds, rest = divmod(sum(int(number) * _NANOSECONDS[unit] for number, unit in parts), 1_000_000_000)
    return seconds if rest == 0 else None


def _whole(amount: float | str | Decimal) -> int:
    return min(int(Decimal(str(amount))), _LARGEST)


def _quoted(text: str) -> str:
    """A structured-field string, of printable ASCII."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
