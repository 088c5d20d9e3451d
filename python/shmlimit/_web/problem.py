"""What is answered instead of the application's response, with problem details as RFC 9457 has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


@dataclass(frozen=True)
class Answer:
    """A response that says why the application was not asked.

    Attributes:
        status: Of HTTP.
        problem: What the body says, as JSON.
        fields: Header fields beyond those that describe the body.
        error: What went wrong, where that is why; clients are not told.
    """

    status: int
    problem: dict[str, Any]
    fields: list[tuple[str, str]] = field(default_factory=list)
    error: Exception | None = None

    @property
    def body(self) -> bytes:
        """The problem, in bytes."""
        return json.dumps(self.problem, separators=(",", ":")).encode() + b"\n"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All header fields."""
        content = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(self.body)))]
        return content + self.fields


def quota_exceeded(policies: Sequence[str]) -> Answer:
    """429, to a request that exceeds the quotas of some limits, as their policies are named."""
    return Answer(
        429,
        {
            "type": _QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": list(policies),
        },
    )


def no_room() -> Answer:
    """503, to a request that every limit would have admitted, but there is no room to keep track of it."""
    detail = "Too many requests are in progress or waiting, or too many clients are being limited"
    return _plain(503, "Service Unavailable", detail)


def without_a_key(error: Exception | None = None) -> Answer:
    """400, to a request that does not say whose limits it is to be held against."""
    return _plain(400, "Bad Request", "The request must name one key by which it is limited", error)


def failed(error: Exception) -> Answer:
    """500, where the limits could not be asked. The client is not told why: that is the operator's business."""
    return _plain(500, "Internal Server Error", None, error)


def _plain(status: int, title: str, detail: str | None, error: Exception | None = None) -> Answer:
    problem = {"type": "about:blank", "title": title, "status": status}
    if detail is not None:
        problem["detail"] = detail
    return Answer(status, problem, error=error)
