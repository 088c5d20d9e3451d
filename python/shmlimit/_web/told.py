"""How clients are told of the limits of a set, as those change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import shmlimit
from shmlimit._web.fields import Policies

# Limits that were changed in a live segment are told as they are then after this many seconds at most.
_FRESH_FOR = 2.0


class Told:
    """What is told of a set: described once for all responses, and again when it may have changed."""

    def __init__(self, limits: shmlimit.Limits, quota_units: Mapping[str, str], prefix: str) -> None:
        self._limits = limits
        self._quota_units = dict(quota_units)
        self._prefix = prefix
        self._declaration: dict[str, Any] = {}
        self._policies = Policies({}, self._quota_units, prefix)
        self._described_at = -_FRESH_FOR
        # Not left to the first request: others that come at the same time would be told nothing.
        self.policies()

    def policies(self) -> Policies:
        """The policies that are in force, as far as this process has heard.

        That they cannot be read is an error of the requests that ask the limits, and not of what is told of others.
        """
        now = time.monotonic()
        if now - self._described_at < _FRESH_FOR:
            return self._policies
        # Before the work, so that other threads go on with what is known meanwhile.
        self._described_at = now
        try:
            declaration = self._limits._segment.declaration()
        except shmlimit.Error:
            return self._policies
        if declaration != self._declaration:
            self._policies = Policies(self._described(declaration), self._quota_units, self._prefix)
            self._declaration = declaration
        return self._policies

    def _described(self, declaration: dict[str, Any]) -> dict[str, Any]:
        for declared in declaration.get("set", []):
            if declared["name"] == self._limits.name:
                described: dict[str, Any] = declared
                return described
        return {}
