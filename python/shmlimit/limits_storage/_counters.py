"""What both storages do: the counters of the library `limits`, kept in segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import wraps
from math import floor
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from limits.errors import ConfigurationError
from limits.limits import TIME_TYPES

from shmlimit import Calls, Error, Rate, Refusal, Removed, SetHandle
from shmlimit._declaration import WhenFull
from shmlimit._windows import WindowDirectory
from shmlimit.results import Checked, Verdict

# The limit of fixed windows whose keys do not name one: more than anyone counts to.
_UNREACHABLE = 2**62

_FIXED = "fixed-window."
_MOVING = "moving-window."
_SLIDING = "sliding-window-counter."

_LIMIT = "requests"
_EXCESS = "excess"

# How many keys refused for lack of a row are remembered.
_MAX_SHUT_OUT = 1024

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


ERRORS: tuple[type[Exception], ...] = (Error, OSError)
"""The errors that counting may raise."""


class TableFull(Error):
    """A key could not be counted: every row that it could take belongs to a limited key.

    This is an error and not a refusal, so that `limits` and Flask-Limiter use their fallback for a failed storage.
    """


def _whichever_file(
    method: Callable[Concatenate[Counters, Parameters], Result],
) -> Callable[Concatenate[Counters, Parameters], Result]:
    """Makes a method try again with newly opened files if one was retired since it was opened."""

    @wraps(method)
    def tried(self: Counters, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except Removed:
            self._directory.forget()
            return method(self, *args, **kwargs)

    return tried


class Counters:
    """Counts requests under keys for each strategy.

    The strategies pass the length of the window when they count, but not always when they ask; then it is read from the
    key, which ends as in `LIMITER/someone/5/1/minute`. Keys of another form are searched for in every file.
    """

    def __init__(self, uri: str | None, options: dict[str, Any]) -> None:
        parts = urlsplit(uri or "")
        if parts.netloc or not unquote(parts.path).strip("/"):
            raise ConfigurationError(
                f"{uri!r} does not name a directory: write shm:///dev/shm/myapp.limits, with three slashes"
            )
        given: dict[str, Any] = {**dict(parse_qsl(parts.query)), **options}
        unknown = given.keys() - {"max_keys", "when_full", "entries"}
        if unknown:
            raise ConfigurationError(f"{uri!r} has options that are not known: {', '.join(sorted(unknown))}")
        try:
            self._entries = int(given.get("entries", 32))
            if self._entries < 1:
                raise ValueError(f"entries is {self._entries}, but must be at least 1")
            self._directory = WindowDirectory(
                unquote(parts.path),
                max_keys=int(given["max_keys"]) if "max_keys" in given else None,
                when_full=cast(WhenFull, given.get("when_full", "evict_least_used")),
            )
        except ValueError as error:
            raise ConfigurationError(f"{uri!r}: {error}") from error
        # Until when each key is refused, on the monotonic clock.
        self._shut_out: dict[str, float] = {}

    @_whichever_file
    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window that begins with its first request; returns the count."""
        limits, limit = self._fixed(key, expiry)
        if amount <= limit:
            checked = limits.check(None if amount == 1 else {_LIMIT: amount}, key=key)
            if checked:
                return limit - int(checked.remaining or 0)
            self._require_row(checked, key, expiry)
        # Refused requests count as well, as far as they fit.
        while amount > 1 and (rest := int(limits.peek({_LIMIT: 0}, key=key)[_LIMIT].remaining)) > 0:
            checked = limits.check({_LIMIT: rest}, key=key)
            if self._require_row(checked, key, expiry):
                break
        return limit + amount

    @_whichever_file
    def get(self, key: str) -> int:
        """The count of a fixed window."""
        verdict = self._find_fixed(key)
        if verdict is not None:
            return _counted(verdict)
        named = _named(key)
        return 0 if self._shut_out_for(key) is None else _UNREACHABLE if named is None else named[0]

    @_whichever_file
    def get_expiry(self, key: str) -> float:
        """When a fixed window ends, in seconds since the Unix epoch; now, if none has begun."""
        verdict = self._find_fixed(key)
        wait = self._shut_out_for(key) if verdict is None else verdict.reset_after
        return time.time() + (wait or 0.0)

    @_whichever_file
    def clear(self, key: str) -> None:
        """Resets a key's fixed and moving windows."""
        self._shut_out.pop(key, None)
        for beginning in (_FIXED, _MOVING):
            for limits in self._directory.known(beginning):
                limits.reset(key=key)

    def check(self) -> bool:
        """Whether the files can be used."""
        try:
            for limits in self._directory.known(""):
                limits.peek({_LIMIT: 0}, key="check")
        except OSError:
            return False
        return True

    @_whichever_file
    def reset(self) -> int | None:
        """Resets everything; returns how many keys had used something."""
        self._shut_out.clear()
        keys = self._directory.keys()
        for limits in self._directory.known(""):
            limits.reset()
        return keys

    @_whichever_file
    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts requests in a moving window, all or none; returns whether they fit."""
        if amount > limit:
            return False
        checked = self._moving(limit, expiry).check(None if amount == 1 else {_LIMIT: amount}, key=key)
        self._require_row(checked, key, expiry)
        return bool(checked)

    @_whichever_file
    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest request in a moving window came, and how many are counted; now and 0 if there are none."""
        if limit < 1:
            return time.time(), 0
        now = time.time()
        shut_out_for = self._shut_out_for(key)
        if shut_out_for is not None:
            return now + shut_out_for - expiry, limit
        forecast = self._moving(limit, expiry).forecast(key=key)[_LIMIT]
        # The next unit arrives when the oldest request leaves.
        oldest = now if forecast.next_unit_after is None else now + forecast.next_unit_after - expiry
        return oldest, limit - int(forecast.spendable)

    @_whichever_file
    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts requests in a sliding window computed from two counters, all or none; returns whether they fit."""
        if amount > limit:
            return False
        # `excess` counts the same usage against the exact limit, so that a key without room for one more request is
        # limited, and so not evicted. It decides nothing: the request asks for 0 of it, and charges it afterwards.
        permit = self._sliding(limit, expiry).try_acquire({_LIMIT: amount, _EXCESS: 0}, key=key)
        if isinstance(permit, Refusal):
            self._require_row(permit, key, expiry)
            return False
        permit.settle({_EXCESS: amount})
        permit.release()
        return True

    @_whichever_file
    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The state of a sliding window as the strategy expects it: two counters, and how long each still counts.

        The segment does not report its two counters separately. The strategy compares their weighted sum with the
        limit, so the sum is returned as the second counter, which ends when there will be room for one more request.
        """
        for limits in self._sliding_files(key, expiry):
            verdict = limits.peek({_LIMIT: 0}, key=key)[_LIMIT]
            capacity = verdict.capacity or 0
            weighted = capacity - verdict.remaining
            if weighted == 0:
                continue
            one_more = floor(verdict.remaining) + 1
            wait = 0.0
            if one_more <= capacity:
                wait = limits.peek({_LIMIT: one_more}, key=key)[_LIMIT].retry_after or 0.0
            # The strategy takes the time modulo the window.
            return 0, 0.0, floor(weighted), expiry + min(wait, expiry - 1e-6)
        shut_out_for = self._shut_out_for(key)
        if shut_out_for is not None:
            named = _named(key)
            return 0, 0.0, _UNREACHABLE if named is None else named[0], expiry + min(shut_out_for, expiry - 1e-6)
        return 0, 0.0, 0, float(expiry)

    @_whichever_file
    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Resets a key's sliding window."""
        self._shut_out.pop(key, None)
        for limits in self._sliding_files(key, expiry):
            limits.reset(key=key)

    def _require_row(self, answer: Checked | Refusal, key: str, expiry: int) -> bool:
        """Whether a full table refused, which is an error unless the table is declared to refuse new keys."""
        if answer.reason != "table_full":
            return False
        if self._directory.when_full != "refuse":
            raise TableFull(
                f"no row of {self._directory.path} is left for a new key: all that it could have had belong to "
                "limited keys; declare a larger max_keys"
            )
        # When asked, the storage then reports the key as limited. How long it will be is not known, but at most until
        # every window that is open now has passed.
        if len(self._shut_out) >= _MAX_SHUT_OUT:
            self._shut_out.clear()
        self._shut_out[key] = time.monotonic() + expiry
        return True

    def _shut_out_for(self, key: str) -> float | None:
        """For how many more seconds a key without a row is reported as limited; None if it is not."""
        until = self._shut_out.get(key)
        if until is None:
            return None
        wait = until - time.monotonic()
        if wait <= 0:
            self._shut_out.pop(key, None)
            return None
        return wait

    def _fixed(self, key: str, expiry: int) -> tuple[SetHandle, int]:
        """The set that counts a key in fixed windows, and its limit."""
        named = _named(key)
        limit = _UNREACHABLE if named is None or named[0] < 1 or named[1] != expiry else named[0]
        limits = self._directory.limits(
            _fixed_kind(limit, expiry),
            2,
            lambda: [Calls(_LIMIT, limit, expiry, algorithm="fixed_window", align="first_use")],
        )
        return limits, limit

    def _moving(self, limit: int, expiry: int) -> SetHandle:
        entries = min(self._entries, limit)
        return self._directory.limits(
            f"{_MOVING}{limit}-per-{expiry}s.{entries}",
            2 + 4 * entries,
            lambda: [Calls(_LIMIT, limit, expiry, algorithm="sliding_window", entries=entries)],
        )

    def _sliding(self, limit: int, expiry: int) -> SetHandle:
        # `limits` rounds the weighted sum down before comparing; the segment rounds it up to the next unit. With units
        # of a millionth, and a capacity of the limit plus all but one of them, both decide alike.
        def rate(name: str, capacity: str) -> Rate:
            return Rate(name, capacity, expiry, algorithm="sliding_window_counter", buckets=1, unit="0.000001")

        return self._directory.limits(
            _sliding_kind(limit, expiry),
            8,
            lambda: [rate(_LIMIT, f"{limit}.999999"), rate(_EXCESS, str(limit))],
        )

    def _find_fixed(self, key: str) -> Verdict | None:
        """The state of a key's fixed window, if one has begun."""
        named = _named(key)
        likely = None if named is None else self._directory.find(_fixed_kind(*named))
        for limits in _each_once(likely, self._directory.known(_FIXED)):
            verdict = limits.peek({_LIMIT: 0}, key=key)[_LIMIT]
            if _counted(verdict) > 0:
                return verdict
        return None

    def _sliding_files(self, key: str, expiry: int) -> Iterator[SetHandle]:
        named = _named(key)
        likely = None if named is None else self._directory.find(_sliding_kind(named[0], expiry))
        every = self._directory.known(_SLIDING)
        return _each_once(likely, (limits for limits in every if f"-per-{expiry}s." in limits.path))


def _fixed_kind(limit: int, expiry: int) -> str:
    return f"{_FIXED}{expiry}s" if limit == _UNREACHABLE else f"{_FIXED}{limit}-per-{expiry}s"


def _sliding_kind(limit: int, expiry: int) -> str:
    return f"{_SLIDING}{limit}-per-{expiry}s"


def _each_once(likely: SetHandle | None, every: Iterator[SetHandle]) -> Iterator[SetHandle]:
    """Yields the likely set first; the others are only opened if the caller goes on."""
    if likely is not None:
        yield likely
    for limits in every:
        if likely is None or limits.path != likely.path:
            yield limits


def _counted(verdict: Verdict) -> int:
    return int(verdict.capacity or 0) - int(verdict.remaining)


def _named(key: str) -> tuple[int, int] | None:
    """The amount and the window, in seconds, at the end of a strategy's key."""
    parts = key.rsplit("/", 3)
    if len(parts) != 4 or parts[3] not in TIME_TYPES:
        return None
    try:
        amount, multiples = int(parts[1]), int(parts[2])
    except ValueError:
        return None
    return (amount, TIME_TYPES[parts[3]].seconds * multiples) if multiples > 0 else None
