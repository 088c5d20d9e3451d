"""Limits shared by every process of a Linux host: rates, calls, budgets and concurrency, through one file of memory.

    import shmlimit as sl

    limits = sl.open("/dev/shm/openai.limits", config="limits.toml")["openai"]
    with limits.acquire({"tokens": 1500}, key="tenant-7", timeout=30) as permit:
        answer = call()
        permit.settle(tokens=answer.usage)

Amounts are in the natural units of a limit; times are seconds, or timedeltas. Refusals are values, and false; only a
wait that ends without a permit raises.
"""

from shmlimit._acquisition import Acquisition
from shmlimit._declaration import Budget, Calls, Concurrency, Keyed, LimitSet, Rate
from shmlimit._errors import (
    AcquireTimeout,
    AlreadyExists,
    AlreadyReleased,
    AlreadySettled,
    CannotApply,
    ConfigMismatch,
    CostRequired,
    Damaged,
    DeclarationError,
    Error,
    ForeignNamespace,
    Incompatible,
    InheritedPermit,
    InUse,
    InvalidAmount,
    InvalidKey,
    KeyRequired,
    LockStuck,
    MustBeHeld,
    NeverAdmissible,
    NoSpace,
    NotASegment,
    NotFound,
    NotKeyed,
    PermitError,
    Poisoned,
    Reclaimed,
    Refused,
    RequestError,
    Retired,
    SegmentError,
    TooManyParticipants,
    UnknownLimit,
    UnknownLimitWarning,
    UnknownName,
    UnknownSet,
    Untrusted,
)
from shmlimit._limits import Limits
from shmlimit._native import (
    Checked,
    Forecast,
    LocalCredit,
    Permit,
    Refusal,
    Reservation,
    Settlement,
    Verdict,
    remove,
)
from shmlimit._pool import Pool
from shmlimit._segment import Segment, open  # noqa: A004

__all__ = [
    "AcquireTimeout",
    "Acquisition",
    "AlreadyExists",
    "AlreadyReleased",
    "AlreadySettled",
    "Budget",
    "Calls",
    "CannotApply",
    "Checked",
    "Concurrency",
    "ConfigMismatch",
    "CostRequired",
    "Damaged",
    "DeclarationError",
    "Error",
    "Forecast",
    "ForeignNamespace",
    "InUse",
    "Incompatible",
    "InheritedPermit",
    "InvalidAmount",
    "InvalidKey",
    "KeyRequired",
    "Keyed",
    "LimitSet",
    "Limits",
    "LocalCredit",
    "LockStuck",
    "MustBeHeld",
    "NeverAdmissible",
    "NoSpace",
    "NotASegment",
    "NotFound",
    "NotKeyed",
    "Permit",
    "PermitError",
    "Poisoned",
    "Pool",
    "Rate",
    "Reclaimed",
    "Refusal",
    "Refused",
    "RequestError",
    "Reservation",
    "Retired",
    "Segment",
    "SegmentError",
    "Settlement",
    "TooManyParticipants",
    "UnknownLimit",
    "UnknownLimitWarning",
    "UnknownName",
    "UnknownSet",
    "Untrusted",
    "Verdict",
    "open",
    "remove",
]
