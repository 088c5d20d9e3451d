"""Tells limits further out that limits further in have refused a request, so that they give back what they took.

The request itself carries the message, where no client and no upstream can write: in its scope in ASGI, in its
environment in WSGI.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol, TypeAlias

Context: TypeAlias = MutableMapping[str, Any]

_ADMISSIONS = "shmlimit.admissions"


class Outer(Protocol):
    """What a request holds of limits further out."""

    def note_refused_inside(self) -> None:
        """Notes that limits further in have refused the request."""


def announce(context: Context, admission: Outer) -> None:
    """Makes an admission known to limits further in."""
    context[_ADMISSIONS] = (*context.get(_ADMISSIONS, ()), admission)


def tell_outer(context: Context) -> None:
    """Tells all admissions further out that the request is refused here."""
    outer: tuple[Outer, ...] = context.get(_ADMISSIONS, ())
    for admission in outer:
        admission.note_refused_inside()
