"""What a call under a permit takes: always the same, or computed from its arguments."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from shmlimit._callables import answered, awaited, refuse_asynchronous
from shmlimit._declaration import Amount

Costs: TypeAlias = Mapping[str, Amount]
"""Amounts by limit name."""

Overrides: TypeAlias = Mapping[str, Amount | None]
"""A key's own capacities by limit name; None restores the declared capacity."""

Key: TypeAlias = str | bytes | int | IPv4Address | IPv6Address | UUID
"""The key whose limits are used: addresses and UUIDs by their text."""


def check_costs(costs: object) -> None:
    """Checks costs right away, for callers that use them only later.

    Args:
        costs: The costs; None is fine.

    Raises:
        TypeError: They are not a mapping.
    """
    if costs is not None and not hasattr(costs, "items"):
        raise TypeError(f'{costs!r} names no limits: give a mapping of names to amounts, such as {{"tokens": 1500}}')


def check_timeout(timeout: float | timedelta | None) -> float | None:
    """Checks a timeout right away, for callers that use it only later.

    Args:
        timeout: The timeout; None is fine.

    Returns:
        Its seconds; None for None.

    Raises:
        TypeError: It is neither a number nor a `timedelta`.
        ValueError: It is negative, or NaN.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta) and not hasattr(timeout, "__float__") and not hasattr(timeout, "__index__"):
        raise TypeError(f"{timeout!r} is not a time: give seconds as a number, or a timedelta")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if math.isnan(seconds):
        raise ValueError(f"{timeout!r} is not a time: give seconds as a number, or a timedelta")
    if seconds < 0:
        raise ValueError(
            f"timeout is {timeout!r}: give seconds from 0, which does not wait, or None to wait for as long as it takes"
        )
    return seconds


def check_overrides(overrides: object) -> None:
    """Checks a key's own capacities right away, for callers that use them only later.

    Args:
        overrides: The capacities; None is fine.

    Raises:
        TypeError: They are not a mapping.
    """
    if overrides is not None and not hasattr(overrides, "items"):
        raise TypeError(
            f'{overrides!r} names no limits: give a mapping of names to capacities, such as {{"tokens": 500}}'
        )


class Taken(NamedTuple):
    """What a call takes."""

    costs: Costs | None
    key: Key | None
    tier: str | None
    overrides: Overrides | None


@dataclass(frozen=True)
class ByArguments:
    """What calls take, fixed or computed.

    Attributes:
        costs: The costs, or a function that returns them for a call's arguments.
        key: The key, or a function that returns it for a call's arguments.
        tier: The tier to put the key into, or a function that returns it for a call's arguments.
        overrides: The key's own capacities, or a function that returns them for a call's arguments.
    """

    costs: Costs | Callable[..., Costs | Awaitable[Costs | None] | None] | None
    key: Key | Callable[..., Key | Awaitable[Key | None] | None] | None
    tier: str | Callable[..., str | Awaitable[str | None] | None] | None = None
    overrides: Overrides | Callable[..., Overrides | Awaitable[Overrides | None] | None] | None = None

    def refuse_asynchronous(self) -> None:
        """Rejects asynchronous functions, for callers that only use `of`.

        Raises:
            TypeError: A function is asynchronous.
        """
        refuse_asynchronous(costs=self.costs, key=self.key, tier=self.tier, overrides=self.overrides)

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Taken:
        """Computes what a call with these arguments takes.

        Args:
            args: The call's positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs, the key, and its tier and capacities.

        Raises:
            TypeError: A function returned something that would have to be awaited.
        """
        values = []
        for name in Taken._fields:
            value = getattr(self, name)
            values.append(answered(name, value(*args, **kwargs)) if callable(value) else value)
        return Taken(*values)

    async def of_async(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Taken:
        """Computes what a call takes, in a task: functions may be asynchronous.

        Args:
            args: The call's positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs, the key, and its tier and capacities.
        """
        values = []
        for name in Taken._fields:
            value = getattr(self, name)
            values.append(await awaited(name, value(*args, **kwargs)) if callable(value) else value)
        return Taken(*values)
