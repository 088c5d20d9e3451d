"""Whose limits a request is held against."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from shmlimit._by_arguments import Key
from shmlimit._web.client_address import ClientAddress

Request = TypeVar("Request")
OfFramework = TypeVar("OfFramework", covariant=True)


class Head(Protocol[OfFramework]):
    """What is read of a request, whichever framework it comes from."""

    @property
    def request(self) -> OfFramework:
        """The request as the framework has it: what callables are given."""

    @property
    def client_address(self) -> str | None:
        """The address of the other end of the connection; none where it has none, as with Unix sockets."""

    def header_values(self, name: str) -> list[str]:
        """The values of a header, one for each line that the server keeps apart."""


@dataclass(frozen=True)
class Header:
    """Limits each client by itself: the value of this header is the key.

    Anyone can make up a key that no one checks, and has fresh limits by it. Let requests come through something that
    checks it first, or keys that are made up fill the table and new clients are turned away.

    Attributes:
        name: The header, in any case.
        default: The key of all requests without the header together. Without it they are answered 400, and so are
            in any case those whose header is empty or repeated: which of several values counts is not specified
            anywhere.
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
    """Sees that what is to find the key of each request can, where it is given.

    Raises:
        TypeError: It is neither of the above nor callable: a string is no key of all requests.
    """
    if key is not None and not isinstance(key, (Header, ClientAddress)) and not callable(key):
        raise TypeError(f"key is {key!r}, but must be Header(...), ClientAddress() or a callable of the request")
