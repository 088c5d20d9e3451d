"""Header fields as ASGI has them."""

from __future__ import annotations


def encoded(fields: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Encodes names and values, the names in lower case."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
