"""Responses about limits, for programs that ask the limits themselves: the same as the integrations send.

```python
import shmlimit as sl
from shmlimit.http import rate_limit_fields, refusal_response

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]

def serve(request):
    asked = limits.try_acquire(key=request.user)
    if not asked:
        refused = refusal_response(asked, limits)
        return Response(refused.body, refused.status, refused.headers)
    with asked:
        return Response("done", 200, rate_limit_fields(asked, limits))
```
"""

from __future__ import annotations

from collections.abc import Mapping

from shmlimit import Error, Permit, Refusal, Refused, SetHandle, _native
from shmlimit._web.admission import Answer, answer_to
from shmlimit._web.options import Advertise
from shmlimit.results import Checked

__all__ = ["Answer", "rate_limit_fields", "refusal_response"]


def refusal_response(
    refused: Refusal | Checked | Error,
    limits: SetHandle,
    *,
    advertise: Advertise = "always",
    quota_units: Mapping[str, str] | None = None,
    policy_prefix: str = "",
) -> Answer:
    """Builds the response to a request that limits did not admit.

    Args:
        refused: What the limits said: a refusal, or the error that was raised instead, such as `AcquireTimeout`,
            `NeverAdmissible` or `InvalidKey`. Other errors are answered 500.
        limits: The set that was asked.
        advertise: Whether the response reports the state of the limits; `"never"` if not.
        quota_units: For each rate limit or budget, the unit in which clients count it. Those without one are left out.
        policy_prefix: A prefix for the names of limits wherever clients read them.

    Returns:
        The status, the header fields (`headers`), and problem details as in RFC 9457 (`body`, and `problem` as a
        dictionary).

    Raises:
        ValueError: `refused` was admitted, was unpickled, or is a `Refused` that the program itself raised.
    """
    headers = _headers(limits, advertise, quota_units, policy_prefix)
    if not isinstance(refused, Error):
        return Answer(*headers.refusal(refused))
    if isinstance(refused, Refused) and refused.refusal is None:
        raise ValueError("the error has no refusal: give the one that was raised by the limits")
    return answer_to(refused, limits, headers)


def rate_limit_fields(
    admitted: Permit | Checked,
    limits: SetHandle,
    *,
    quota_units: Mapping[str, str] | None = None,
    policy_prefix: str = "",
) -> list[tuple[str, str]]:
    """Builds the header fields `RateLimit` and `RateLimit-Policy` for the response to an admitted request.

    Args:
        admitted: What the limits said.
        limits: The set that was asked.
        quota_units: For each rate limit or budget, the unit in which clients count it. Those without one are left out.
        policy_prefix: A prefix for the names of limits.

    Returns:
        Names and values.

    Raises:
        ValueError: The request was refused.
    """
    return _headers(limits, "always", quota_units, policy_prefix).admission(admitted)


def _headers(
    limits: SetHandle, advertise: Advertise, quota_units: Mapping[str, str] | None, policy_prefix: str
) -> _native.PolicyHeaders:
    return _native.PolicyHeaders(limits, advertise=advertise, quota_units=dict(quota_units or {}), prefix=policy_prefix)
