"""What calls take that run under a permit: always the same, or what their arguments say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias

from shmlimit._declaration import Amount

Costs: TypeAlias = Mapping[str, Amount]
"""Amounts by the names of limits."""

Key: TypeAlias = str | bytes | int | IPv4Address | IPv6Address
"""Who is limited."""


@dataclass(frozen=True)
class ByArguments:
    """The costs and the key of calls.

    Attributes:
        costs: The costs, or a function of a call's arguments that answers them.
        key: The key, or a function of a call's arguments that answers it.
    """

    costs: Costs | Callable[..., Costs | None] | None
    key: Key | Callable[..., Key | None] | None

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Costs | None, Key | None]:
        """What a call with these arguments takes.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The costs and the key.
        """
        costs = self.costs(*args, **kwargs) if callable(self.costs) else self.costs
        key = self.key(*args, **kwargs) if callable(self.key) else self.key
        return costs, key
