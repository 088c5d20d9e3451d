"""What the limits read from a request."""

from typing import ClassVar, Generic, Protocol, TypeVar

from shmlimit._web.refused_inside import Context

Request = TypeVar("Request")
OfFramework = TypeVar("OfFramework", covariant=True)
Described = TypeVar("Described", bound=Context)


class Head(Protocol[OfFramework]):
    """What the limits read from a request, independent of the framework."""

    @property
    def request(self) -> OfFramework:
        """The framework's own request object, passed to callables."""

    @property
    def context(self) -> Context:
        """Where the request carries what only this process can write."""

    @property
    def method(self) -> str:
        """The method of the request, in capitals; empty if it has none, as with WebSockets."""

    @property
    def client_address(self) -> str | None:
        """The address of the other end of the connection; None if it has none, as with Unix sockets."""

    def header_values(self, name: str) -> list[str]:
        """The values of a header, one for each line that the server keeps separate."""


class DescribedHead(Generic[Described]):
    """What the limits read from a request that is itself the mapping in which the server describes it."""

    METHOD: ClassVar[str]
    """The entry that has the method."""

    def __init__(self, request: Described) -> None:
        self.request = request

    @property
    def context(self) -> Context:
        return self.request

    @property
    def method(self) -> str:
        return str(self.request.get(self.METHOD, ""))


def is_preflight(head: Head[OfFramework]) -> bool:
    """Whether a request is a preflight, by which a browser asks whether it may send a request from another origin.

    Args:
        head: What the limits read from the request.
    """
    return head.method == "OPTIONS" and bool(head.header_values("access-control-request-method"))
