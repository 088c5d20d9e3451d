"""What else to do when a set or a pool is made, as registered by modules that import those of sets and pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

on_making: list[Callable[[], None]] = []


def note_making() -> None:
    """Called by each set and pool that is made."""
    for call in on_making:
        call()
