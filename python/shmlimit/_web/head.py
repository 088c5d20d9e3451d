"""What the limits read from a request."""

from typing import Protocol, TypeVar

from shmlimit._web.refused_inside import Context

Request = TypeVar("Request")
OfFramework = TypeVar("OfFramework", covariant=True)


class Head(Protocol[OfFramework]):
    """What the limits read from a request, independent of the framework."""

    @property
    def request(self) -> OfFramework:
        """The framework's own request object, passed to callables."""

    @property
    def context(self) -> Context:
        """Where the request carries what only this process can write."""

    @property
    def client_address(self) -> str | None:
        """The address of the other end of the connection; None if it has none, as with Unix sockets."""

    def header_values(self, name: str) -> list[str]:
        """The values of a header, one for each line that the server keeps separate."""
