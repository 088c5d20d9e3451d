"""What calls take that run under a permit: always the same, or what their arguments say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple, TypeAlias

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
    limits: Capacities | None


@dataclass(frozen=True)
class ByArguments:
    """What calls take.

    Attributes:
        costs: The costs, or a function of a call's arguments that answers them.
        key: The key, or a function of a call's arguments that answers it.
        tier: The tier that the key is put into, or a function of a call's arguments that answers it.
        limits: The capacities that the key has of its own, or a function of a call's arguments that answers them.
    """

    costs: Costs | Callable[..., Costs | None] | None
    key: Key | Callable[..., Key | None] | None
    tier: str | Callable[..., str | None] | None = None
    limits: Capacities | Callable[..., Capacities | None] | None = None

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Taken:
        """What a call with these arguments takes.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs, the key, and its tier and capacities.
        """
        return Taken(
            self.costs(*args, **kwargs) if callable(self.costs) else self.costs,
            self.key(*args, **kwargs) if callable(self.key) else self.key,
            self.tier(*args, **kwargs) if callable(self.tier) else self.tier,
            self.limits(*args, **kwargs) if callable(self.limits) else self.limits,
        )
