"""What calls take that run under a permit: always the same, or what their arguments say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias

from shmlimit._declaration import Amount

Costs: TypeAlias = Mapping[str, Amount]
"""Amounts by the names of limits."""

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


@dataclass(frozen=True)
class ByArguments:
    """The costs, the key and its tier of calls.

    Attributes:
        costs: The costs, or a function of a call's arguments that answers them.
        key: The key, or a function of a call's arguments that answers it.
        tier: The tier that the key is put into, or a function of a call's arguments that answers it.
    """

    costs: Costs | Callable[..., Costs | None] | None
    key: Key | Callable[..., Key | None] | None
    tier: str | Callable[..., str | None] | None = None

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Costs | None, Key | None, str | None]:
        """What a call with these arguments takes.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs, the key, and its tier.
        """
        costs = self.costs(*args, **kwargs) if callable(self.costs) else self.costs
        key = self.key(*args, **kwargs) if callable(self.key) else self.key
        tier = self.tier(*args, **kwargs) if callable(self.tier) else self.tier
        return costs, key, tier
