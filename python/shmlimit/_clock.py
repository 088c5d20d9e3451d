"""Time that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeAlias

from shmlimit import _native

if TYPE_CHECKING:
    from typing_extensions import Self

Instant: TypeAlias = float | timedelta | datetime
"""Seconds since the Unix epoch, or a datetime with a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_START = datetime(2000, 1, 1, tzinfo=timezone.utc)


class VirtualClock(_native.VirtualClock):
    """A clock for tests: it stands still until it is moved, and only ever forward.

    What is opened with it, by `shmlimit.open(..., clock=clock)`, goes by it alone: limits replenish, windows turn and
    leases run out as it is moved, exactly. As a context manager it is the clock of everything that this process opens
    meanwhile without naming another, in every thread: also of what integrations, the `limits` storage and throttles
    open.

        clock = sl.VirtualClock()
        with clock:
            limits = sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 1, "1h")]))["api"]
        assert limits.check()
        assert not limits.check()
        clock.advance(3600)
        assert limits.check()

    It is of this process alone: a process that is started or forked has another, and a handle that goes by it does not
    pickle. What waits does not go by it: the timeouts of `acquire` are real time, and a request that waits for time to
    pass looks again when that much real time has passed. In tests ask without waiting.
    """

    __slots__ = ()

    def __new__(cls, now: Instant = _START) -> Self:
        """Makes a clock.

        Args:
            now: Where it stands; at the beginning of the year 2000, UTC, unless given.
        """
        return super().__new__(cls, _since_epoch(now))

    def advance(self, seconds: float | timedelta) -> None:
        """Moves the clock on.

        Args:
            seconds: By how much. What a refusal says in `retry_after` is enough for it to be admitted, exactly.

        Raises:
            ValueError: It is less than nothing.
        """
        is_negative = seconds < timedelta(0) if isinstance(seconds, timedelta) else seconds < 0
        if is_negative:
            raise ValueError(f"{seconds!r} is less than nothing: the clock goes forward only")
        self._advance(seconds)

    def set(self, now: Instant) -> None:
        """Moves the clock to an instant.

        Args:
            now: The instant, not before the one where the clock stands.

        Raises:
            ValueError: It has passed.
        """
        self._set(_since_epoch(now))

    def __enter__(self) -> Self:
        _current.append(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        _current.remove(self)

    def __repr__(self) -> str:
        return f"<VirtualClock at {(_EPOCH + timedelta(seconds=self.now)).isoformat()}>"


# The clocks that were entered and not left; the last of them counts.
_current: list[VirtualClock] = []


def current_clock() -> VirtualClock | None:
    """The clock of what is opened now and names none; None for the real time."""
    return _current[-1] if _current else None


def _since_epoch(now: Instant) -> float | timedelta:
    if not isinstance(now, datetime):
        return now
    if now.tzinfo is None:
        raise ValueError(f"{now!r} has no time zone: write datetime(..., tzinfo=timezone.utc)")
    return now - _EPOCH
