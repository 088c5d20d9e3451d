"""Where a request comes from: the other end of the connection, or the address that trusted proxies report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from shmlimit._by_arguments import Key
from shmlimit._web.head import Head, Request

_log = logging.getLogger("shmlimit")


@dataclass(frozen=True)
class ClientAddress:
    """Limits each client address separately.

    `ClientAddress()` takes the address of the other end of the connection. Behind a proxy, that is the proxy's address
    for every client: use `ClientAddress.x_forwarded_for(1)` there, or `ClientAddress.forwarded(1)` if the proxy sends
    the `Forwarded` header of RFC 7239, with the number of trusted proxies.

    Anyone can send a header. Each proxy appends the address that reached it, so with one proxy the last entry is the
    client, with two the last but one. The client may have made up everything before that, so it is ignored. The other
    of the two headers is ignored, too, because a proxy that sets one passes the other on unchanged.

    Attributes:
        default: The key of requests without an address: those that came over a Unix socket, or through too few
            proxies. Without a default they are answered 400.
    """

    default: Key | None = None
    _said_by: _Proxies | None = None

    @classmethod
    def x_forwarded_for(cls, trusted_proxies: int, *, default: Key | None = None) -> ClientAddress:
        """Takes the address from `X-Forwarded-For`, to which each trusted proxy appends.

        Args:
            trusted_proxies: How many trusted proxies there are, at least 1.
            default: The key of requests without an address.

        Raises:
            ValueError: `trusted_proxies` is not a number of at least 1.
        """
        return cls(default, _Proxies("X-Forwarded-For", trusted_proxies, _entries, _node))

    @classmethod
    def forwarded(cls, trusted_proxies: int, *, default: Key | None = None) -> ClientAddress:
        """Takes the address from `Forwarded` (RFC 7239), to which each trusted proxy appends.

        Args:
            trusted_proxies: How many trusted proxies there are, at least 1.
            default: The key of requests without an address.

        Raises:
            ValueError: `trusted_proxies` is not a number of at least 1.
        """
        return cls(default, _Proxies("Forwarded", trusted_proxies, lambda line: _split(line, ","), _forwarded_for))

    @property
    def is_of_connection(self) -> bool:
        """Whether the address is that of the connection, not from a header."""
        return self._said_by is None

    def find(self, head: Head[Request]) -> Key | None:
        """The key of a request: its client's address, or the default."""
        address = head.client_address if self._said_by is None else self._said_by.address(head)
        return address or self.default


@dataclass(frozen=True)
class _Proxies:
    """The trusted proxies, and how they report where a request comes from."""

    header: str
    trusted: int
    entries: Callable[[str], list[str] | None]
    client: Callable[[str], str | None]

    def __post_init__(self) -> None:
        if isinstance(self.trusted, bool) or not isinstance(self.trusted, int) or self.trusted < 1:
            raise ValueError(
                f"trusted_proxies is {self.trusted!r}, but must be 1 or more: without a proxy, use ClientAddress()"
            )

    def address(self, head: Head[Request]) -> str | None:
        """The address that the outermost trusted proxy appended."""
        appended: list[str] = []
        for line in head.header_values(self.header):
            entries = self.entries(line)
            if entries is None:
                return None
            appended += entries
        return self.client(appended[-self.trusted]) if len(appended) >= self.trusted else None


def _entries(line: str) -> list[str]:
    return [entry.strip() for entry in line.split(",")]


def _split(line: str, separator: str) -> list[str] | None:
    """Splits a list outside of quoted strings; None if a quoted string is not closed.

    Otherwise a client could open one that swallows what proxies append.
    """
    parts = [""]
    is_quoted = is_escaped = False
    for character in line:
        if character == separator and not is_quoted:
            parts.append("")
            continue
        parts[-1] += character
        if is_escaped:
            is_escaped = False
        elif character == '"':
            is_quoted = not is_quoted
        elif character == "\\" and is_quoted:
            is_escaped = True
    return None if is_quoted else [part.strip() for part in parts]


def _forwarded_for(element: str) -> str | None:
    """The client that an element of `Forwarded` names."""
    for pair in _split(element, ";") or ():
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            value = value.strip()
            is_quoted = len(value) >= 2 and value[0] == value[-1] == '"'
            return _node(value[1:-1] if is_quoted else value)
    return None


def _node(text: str) -> str | None:
    """Parses an address with or without a port into its shortest form; IPv6 with a port needs brackets."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            return None
        port = rest[1:] if rest else ""
        if rest == ":":
            return None
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not port:
            return None
    if port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        return None
    try:
        # A zone would name one of the proxy's own interfaces.
        return None if "%" in host else str(ip_address(host))
    except ValueError:
        return None


class AddressWatch:
    """Warns once if requests are limited by a proxy's address, or have no address."""

    # More requests from the loopback than a developer would make.
    _SUSPICIOUS = 100

    def __init__(self) -> None:
        self._loopbacks = 0
        self._is_quiet = False

    def note(self, head: Head[Request]) -> None:
        """Looks at a request that is limited by its connection's address."""
        if self._is_quiet:
            return
        address = head.client_address
        if address is not None and not _is_loopback(address):
            self._is_quiet = True
            return
        self._loopbacks += 1
        has_come_by_proxy = any(head.header_values(name) for name in ("X-Forwarded-For", "Forwarded"))
        if has_come_by_proxy or address is None or self._loopbacks >= self._SUSPICIOUS:
            self._is_quiet = True
            seen = "have no address (a Unix socket?)" if address is None else f"all come from {address} (a proxy?)"
            _log.warning(
                "requests %s, so ClientAddress() cannot tell clients apart: behind a proxy use "
                "ClientAddress.x_forwarded_for(1) or .forwarded(1), whichever header it sets",
                seen,
            )


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
