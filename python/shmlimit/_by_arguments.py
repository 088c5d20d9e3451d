"""What calls take that run under a permit: always the same, or what their arguments say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple, TypeAlias

from shmlimit._callables import answered, awaited, refuse_asynchronous
from shmlimit._declaration import Amount

Costs: TypeAlias = Mapping[str, Amount]
"""Amounts by the names of limits."""

Capacities: TypeAlias = Mapping[str, Amount | None]
"""Capacities that a key has of its own, by the names of limits; None for those that are declared."""

Key: TypeAlias = str | bytes | int | IPv4Address | IPv6Address
"""Who is limited."""


def check_costs(costs: object) -> None:
    """Sees that costs name limits, where they are given, for what only uses them later.

    Args:
        costs: The costs.

    Raises:
        TypeError: They are no mapping.
    """
    if costs is not None and not hasattr(costs, "items"):
        raise TypeError(f'{costs!r} names no limits: give a mapping of names to amounts, such as {{"tokens": 1500}}')


def check_timeout(timeout: float | timedelta | None) -> None:
    """Sees that a timeout is not negative, for what only uses it later.

    Args:
        timeout: The timeout.

    Raises:
        ValueError: It is.
    """
    if timeout is not None and (timeout.total_seconds() if isinstance(timeout, timedelta) else timeout) < 0:
        raise ValueError(
            f"timeout is {timeout!r}: give seconds from 0, which does not wait, or None to wait for as long as it takes"
        )


def check_limits(limits: object) -> None:
    """Sees that capacities name limits, where they are given, for what only uses them later.

    Args:
        limits: The capacities.

    Raises:
        TypeError: They are no mapping.
    """
    if limits is not None and not hasattr(limits, "items"):
        raise TypeError(f'{limits!r} names no limits: give a mapping of names to capacities, such as {{"tokens": 500}}')


class Taken(NamedTuple):
    """What a call takes."""

    costs: Costs | None
    key: Key | None
    tier: str | None
    overrides: Capacities | None


@dataclass(frozen=True)
class ByArguments:
    """What calls take.

    Attributes:
        costs: The costs, or a function of a call's arguments that answers them.
        key: The key, or a function of a call's arguments that answers it.
        tier: The tier that the key is put into, or a function of a call's arguments that answers it.
        overrides: The capacities that the key has of its own, or a function of a call's arguments that answers them.
    """

    costs: Costs | Callable[..., Costs | Awaitable[Costs | None] | None] | None
    key: Key | Callable[..., Key | Awaitable[Key | None] | None] | None
    tier: str | Callable[..., str | Awaitable[str | None] | None] | None = None
    overrides: Capacities | Callable[..., Capacities | Awaitable[Capacities | None] | None] | None = None

    def refuse_asynchronous(self) -> None:
        """Sees that no function has to be awaited, for what only asks `of`.

        Raises:
            TypeError: One has.
        """
        refuse_asynchronous(costs=self.costs, key=self.key, tier=self.tier, overrides=self.overrides)

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Taken:
        """What a call with these arguments takes.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs, the key, and its tier and capacities.

        Raises:
            TypeError: What a function gave would have to be awaited.
        """
        values = []
        for name in Taken._fields:
            value = getattr(self, name)
            values.append(answered(name, value(*args, **kwargs)) if callable(value) else value)
        return Taken(*values)

    async def of_async(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Taken:
        """As `of`, for a task: functions may be asynchronous.

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
