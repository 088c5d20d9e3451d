"""The key whose limits a request counts against."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from shmlimit._by_arguments import Key
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.head import Head, Request


@dataclass(frozen=True)
class Header:
    """Limits each value of a header separately: the value is the key.

    If that is a secret, such as an API key or a bearer token, declare the set with `sl.Keyed(..., store_keys=False)`:
    otherwise its first bytes can be read in the segment's file.

    If nothing checks the header, anyone can make up a key and get fresh limits. Let something check it first, or
    made-up keys fill the table and new clients are turned away.

    Attributes:
        name: The header's name, in any case.
        default: The key that all requests without the header share. Without a default they are answered 400. Requests
            whose header is empty or repeated always are: no standard says which of several values counts.
    """

    name: str
    default: Key | None = None

    def find(self, head: Head[Request]) -> Key | None:
        """The key of a request, if it names one."""
        values = head.header_values(self.name)
        if not values:
            return self.default
        return values[0] if len(values) == 1 and values[0] else None


KeyFinder: TypeAlias = Header | ClientAddress | Callable[[Request], Key | Awaitable[Key | None] | None]


def check_key(key: object) -> None:
    """Checks that a `key` option can find a key for each request; None is fine.

    Raises:
        TypeError: It is neither a `Header` nor a `ClientAddress` nor callable. A string, for example, does not find
            the key of each request.
    """
    if key is not None and not isinstance(key, (Header, ClientAddress)) and not callable(key):
        raise TypeError(f"key is {key!r}, but must be Header(...), ClientAddress() or a callable of the request")
