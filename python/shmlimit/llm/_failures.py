"""What the error of a call says: whether the call cost anything, and what to tell the limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shmlimit import NeverAdmissible, Refused
from shmlimit.llm._usage import member

# The errors by which clients say that no request was sent. A connection that breaks later may have cost something.
_NEVER_SENT = {
    "httpx": {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"},
    "httpcore": {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"},
    "aiohttp": {"ClientConnectorError", "ConnectionTimeoutError", "InvalidURL"},
    "requests": {"ConnectTimeout", "InvalidURL", "InvalidSchema", "MissingSchema"},
    "urllib3": {"NewConnectionError", "ConnectTimeoutError", "LocationParseError"},
    "socket": {"gaierror"},
    "builtins": {"ConnectionRefusedError"},
    "ssl": {"SSLCertVerificationError"},
}

# The modules of exceptions by which programs answer their own clients.
_OF_SERVERS = ("starlette.", "werkzeug.", "rest_framework.", "django.", "aiohttp.web", "litestar.", "quart.")

# The words for a refusal in the body of a response or an event.
_STATUS_OF_WORD = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "RESOURCE_EXHAUSTED": 429,
    "overloaded_error": 529,
    "UNAVAILABLE": 503,
}

# Of the client errors, those after which the server may have worked until somebody lost patience.
_MAY_HAVE_COST = {408, 499}


@dataclass(frozen=True)
class Failure:
    """An answer other than success, or none at all.

    Attributes:
        status: The HTTP status; None if there was no answer.
        headers: The header fields of the answer.
        costs_nothing: Whether the provider certainly charged nothing.
    """

    status: int | None = None
    headers: object = field(default_factory=dict)
    costs_nothing: bool = False

    @property
    def is_of_the_provider(self) -> bool:
        """Whether the work failed at the provider, and not because the request was wrong."""
        return self.status is None or self.status >= 500 or self.status == 429

    @classmethod
    def of_response(cls, response: object) -> Failure | None:
        """What an HTTP response, or an exception that has one, says by its status; None if that is not an error."""
        with_headers = member(response, "response")
        status = _status(response) or _status(with_headers)
        if status is None or status < 400:
            return None
        # Of the server errors, these two are sent before any work begins.
        costs_nothing = (status < 500 and status not in _MAY_HAVE_COST) or status in (503, 529)
        headers = member(response, "headers") or member(with_headers, "headers")
        return cls(status, headers if hasattr(headers, "items") else {}, costs_nothing)

    @classmethod
    def in_body(cls, document: object) -> Failure | None:
        """What an error in a body or an event says; None if it is not about load.

        The error may have come after a part of the answer, so nothing says what the call cost.
        """
        for error in (member(document, "error"), member(member(document, "response"), "error"), document):
            for name in ("type", "code", "status"):
                word = member(error, name)
                if isinstance(word, str) and word in _STATUS_OF_WORD:
                    return cls(_STATUS_OF_WORD[word])
        return None

    @classmethod
    def of_exception(cls, raised: BaseException) -> Failure | None:
        """What an exception says; None if it says nothing about the provider and the cost."""
        causes = list(_causes(raised))
        if any(_is_own_refusal(error) for error in causes):
            # Asking for more than the limits admit is not a failure of the provider.
            return cls(400, costs_nothing=True)
        for error in causes:
            if not _is_of_server(error):
                said = cls.of_response(error) or cls.in_body(member(error, "body")) or cls.in_body(error)
                if said is not None:
                    return said
        return cls(costs_nothing=True) if any(_is_never_sent(error) for error in causes) else None


def _causes(raised: BaseException) -> Iterator[BaseException]:
    """An exception and what it was explicitly raised from; for a group of one exception, that exception."""
    error: BaseException | None = raised
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        grouped = member(error, "exceptions")
        error = grouped[0] if isinstance(grouped, tuple) and len(grouped) == 1 else error.__cause__


def _status(response: object) -> int | None:
    # Google's library calls it `code`, a word that others use for anything.
    for name in ("status_code", "status", "code"):
        status = member(response, name)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
            return status
    return None


def _is_own_refusal(error: BaseException) -> bool:
    return isinstance(error, (Refused, NeverAdmissible)) or type(error).__module__ == "shmlimit.fastapi"


def _is_of_server(error: BaseException) -> bool:
    """Whether this is the program's answer to its own client, whose status is not the provider's."""
    return any(each.__module__.startswith(_OF_SERVERS) for each in type(error).__mro__)


def _is_never_sent(error: BaseException) -> bool:
    return any(
        each.__name__ in _NEVER_SENT.get(each.__module__.partition(".")[0].rstrip("0123456789"), ())
        for each in type(error).__mro__
    )
