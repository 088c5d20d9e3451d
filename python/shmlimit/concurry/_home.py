"""Where a limit set lives: a segment in shared memory, and who removes its file."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import tempfile
import threading
import uuid
from multiprocessing import util
from typing import TYPE_CHECKING, Literal

import shmlimit

from ._amounts import decimals_of, exact_capacity
from ._constants import RateLimitAlgorithm
from ._limits import CallLimit, Limit, RateLimit, ResourceLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmlimit._declaration import Algorithm
    from shmlimit._declaration import Limit as DeclaredLimit

_PREFIX = "shmlimit-concurry-"

_ALGORITHMS: dict[RateLimitAlgorithm, Algorithm] = {
    RateLimitAlgorithm.TokenBucket: "token_bucket",
    RateLimitAlgorithm.LeakyBucket: "leaky_bucket",
    RateLimitAlgorithm.SlidingWindow: "sliding_window",
    RateLimitAlgorithm.FixedWindow: "fixed_window",
    RateLimitAlgorithm.GCRA: "gcra",
}

# The algorithms for which Concurry refunds nothing.
_WITHOUT_REFUNDS = frozenset(
    {RateLimitAlgorithm.LeakyBucket, RateLimitAlgorithm.SlidingWindow, RateLimitAlgorithm.FixedWindow}
)

_swept = False


def takes_fractions(limit: Limit) -> bool:
    """Whether requests may ask for fractions of a token. They may not for calls, or if Concurry logs each token."""
    return (
        isinstance(limit, RateLimit)
        and not isinstance(limit, CallLimit)
        and limit.algorithm not in (RateLimitAlgorithm.LeakyBucket, RateLimitAlgorithm.SlidingWindow)
    )


def decimals(limit: Limit) -> int:
    """How many decimals a limit counts."""
    return decimals_of(limit.capacity, fractions=takes_fractions(limit)) if isinstance(limit, RateLimit) else 0


def declaration(name: str, limits: Sequence[Limit]) -> shmlimit.LimitSet:
    """Declares these limits as a set of this package."""
    return shmlimit.LimitSet(name, limits=[_declared(limit) for limit in limits])


def _declared(limit: Limit) -> DeclaredLimit:
    if isinstance(limit, ResourceLimit):
        return shmlimit.Concurrency(limit.key, limit.capacity)
    if not isinstance(limit, RateLimit):
        raise TypeError(f"a LimitSet takes rate, call and resource limits, not {type(limit).__name__}")
    unlimited = math.isinf(limit.capacity)
    capacity = "unlimited" if unlimited else exact_capacity(limit.capacity)
    algorithm = _ALGORITHMS[limit.algorithm]
    # Concurry's windows begin with the first use, not at full minutes.
    align: Literal["first_use"] | None = "first_use" if algorithm == "fixed_window" else None
    refund = False if limit.algorithm in _WITHOUT_REFUNDS else None
    # No `entries`: it cannot change in a live segment.
    places = decimals(limit)
    if isinstance(limit, CallLimit) and places == 0:
        return shmlimit.Calls(limit.key, capacity, limit.window, algorithm=algorithm, align=align, refund=refund)
    unit = f"{10**-places:.{places}f}" if places else None
    return shmlimit.Rate(limit.key, capacity, limit.window, algorithm=algorithm, align=align, refund=refund, unit=unit)


def _open(path: str, declared: shmlimit.LimitSet | None = None) -> shmlimit.Segment:
    """Opens a segment whose sets skip unknown limit names, as Concurry does."""
    return shmlimit.open(path, declared, strict=False)


def open_named(path: str, declared: shmlimit.LimitSet) -> shmlimit.SetHandle:
    """Opens the set in a segment that unrelated programs share by path; the first one creates it."""
    return _open(path, declared)[declared.name]


def open_new(owner: object, declared: shmlimit.LimitSet) -> tuple[str, shmlimit.SetHandle]:
    """Creates a set in a file of its own, which is removed by the last process that has the set."""
    path = _unique_path()
    return path, _open_counted(owner, path, declared.name, declared)


def attach(owner: object, path: str, name: str) -> shmlimit.SetHandle:
    """Opens the set in an existing segment."""
    if os.path.basename(path).startswith(_PREFIX):
        return _open_counted(owner, path, name)
    return _open(path)[name]


# The sets of this process, by file. A set is added before its file is opened, so that nobody here removes it meanwhile.
_used: set[tuple[str, int]] = set()
_numbers = itertools.count()
# Reentrant, because a garbage collection while it is held may run a finalizer that takes it.
_counting = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_counting=threading.RLock()))


def _open_counted(owner: object, path: str, name: str, declared: shmlimit.LimitSet | None = None) -> shmlimit.SetHandle:
    """Opens a set whose file is removed with the last set of the last process that has it."""
    use = path, next(_numbers)
    with _counting:
        _used.add(use)
    try:
        handle = _open(path, declared)[name]
    except BaseException:
        with _counting:
            _used.discard(use)
        raise
    # Children of multiprocessing also call this when they end, after their own children. A child made by a plain fork
    # has a copy of the owner, but does not call this.
    util.Finalize(owner, _remove_unless_used, args=use, exitpriority=-10)
    return handle


def _remove_unless_used(path: str, number: int) -> None:
    with _counting:
        _used.discard((path, number))
        if all(used != path for used, _ in tuple(_used)):
            _remove(path)


def _remove(path: str) -> None:
    with contextlib.suppress(shmlimit.Error):
        try:
            shmlimit.remove(path)
        except shmlimit.InUse as error:
            # If other processes use it, they will remove it.
            if error.pids == [os.getpid()]:
                shmlimit.remove(path, force=True)


def _directory() -> str:
    shared_memory = "/dev/shm"
    return shared_memory if os.access(shared_memory, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _unique_path() -> str:
    global _swept
    directory = _directory()
    if not _swept:
        _swept = True
        _sweep(directory)
    return os.path.join(directory, f"{_PREFIX}{os.getuid()}-{uuid.uuid4().hex}.limits")


def _sweep(directory: str) -> None:
    """Removes what killed processes left behind: this user's segments that nobody is attached to."""
    own = f"{_PREFIX}{os.getuid()}-"
    for name in os.listdir(directory):
        if name.startswith(own):
            with contextlib.suppress(shmlimit.Error):
                shmlimit.remove(os.path.join(directory, name))
