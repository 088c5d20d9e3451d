"""Limits shared by every process on a Linux host: rates, calls, budgets and concurrency, in one shared-memory file.

    import shmlimit as sl

    limits = sl.open("/dev/shm/openai.limits", sl.LimitSet("openai", [
        sl.Calls("requests", 500, "60s", algorithm="sliding_window"),
        sl.Rate("tokens", 200_000, "60s", algorithm="token_bucket"),
        sl.Concurrency("in_flight", 16),
    ]))["openai"]

    with limits.acquire(tokens=1500, timeout=30) as permit:  # waits in the queue
        answer = call_the_model()
        permit.settle(tokens=answer.usage)                   # what was not used comes back

    if not (result := limits.try_acquire(tokens=1500)):      # answers at once
        print(result.binding, result.reason, result.retry_after)

Amounts are in a limit's natural units; times are seconds or timedeltas. A refusal is a value, and falsy. A wait that
ends without a permit raises, and so does entering a refusal with `with`.

Declare   LimitSet of Rate, Calls, Budget and Concurrency; Keyed, Tier: each key with limits of its own
Open      open -> Segment; segment["name"] -> SetHandle; Pool: a choice of sets; remove
Ask       SetHandle.acquire, try_acquire, acquire_async, limited, check, reserve, peek, forecast, debit
Answers   Permit.settle, release, debit, respect; Refusal; all of them in shmlimit.results
Errors    Error, and below it DeclarationError, RequestError, Refused, PermitError, SegmentError, UnknownName
Test      VirtualClock; shmlimit.testing: pytest fixtures

Frameworks   shmlimit.wsgi, asgi, django, rest_framework, fastapi, http; limits_storage: Flask-Limiter, slowapi
Workers      shmlimit.celery, futures; concurry
Models       shmlimit.llm: calls to language models
Metrics      shmlimit.prometheus

`print(shmlimit.__doc__)` prints this page alone, and `help(shmlimit.SetHandle)` describes a class. docs/python.md is
the guide, docs/tutorials is where to begin, and `limitctl --help` describes the command.
"""

from shmlimit import results
from shmlimit._clock import VirtualClock
from shmlimit._declaration import Budget, Calls, Concurrency, Keyed, LimitSet, Rate, Tier
from shmlimit._errors import (
    AcquireTimeout,
    AlreadyReleased,
    AlreadySettled,
    BlockingAcquireWarning,
    ConfigMismatch,
    CostRequired,
    DeclarationError,
    Error,
    InUse,
    InvalidAmount,
    InvalidKey,
    InvalidSegment,
    LockStuck,
    NeverAdmissible,
    NoSpace,
    NotFound,
    PermissionDenied,
    PermitError,
    Reclaimed,
    Refused,
    Removed,
    RequestError,
    SegmentClosed,
    SegmentError,
    UnknownLimit,
    UnknownLimitWarning,
    UnknownName,
)
from shmlimit._native import Permit, Refusal, __version__, remove
from shmlimit._pool import Pool
from shmlimit._segment import Segment, anonymous, open  # noqa: A004
from shmlimit._set_handle import SetHandle

__all__ = [
    "AcquireTimeout",
    "AlreadyReleased",
    "AlreadySettled",
    "BlockingAcquireWarning",
    "Budget",
    "Calls",
    "Concurrency",
    "ConfigMismatch",
    "CostRequired",
    "DeclarationError",
    "Error",
    "InUse",
    "InvalidAmount",
    "InvalidKey",
    "InvalidSegment",
    "Keyed",
    "LimitSet",
    "LockStuck",
    "NeverAdmissible",
    "NoSpace",
    "NotFound",
    "PermissionDenied",
    "Permit",
    "PermitError",
    "Pool",
    "Rate",
    "Reclaimed",
    "Refusal",
    "Refused",
    "Removed",
    "RequestError",
    "Segment",
    "SegmentClosed",
    "SegmentError",
    "SetHandle",
    "Tier",
    "UnknownLimit",
    "UnknownLimitWarning",
    "UnknownName",
    "VirtualClock",
    "__version__",
    "anonymous",
    "open",
    "remove",
    "results",
]
