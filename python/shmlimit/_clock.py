"""Time that stands still until a test moves it, or waits."""

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
    """A clock for tests: it stands still until it is moved or something waits, and moves only forward.

    A segment opened with `shmlimit.open(..., clock=clock)` follows this clock alone: limits replenish, windows turn and
    leases run out exactly as it is moved. As a context manager, it is the clock of every segment that this process
    opens meanwhile without naming one, in any thread, including those that integrations, the `limits` storage and
    throttles open.

        clock = sl.VirtualClock()
        with clock:
            limits = sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 1, "1h")]))["api"]
        assert limits.check()
        assert not limits.check()
        clock.advance(3600)
        assert limits.check()

    The clock belongs to this process: a started or forked process does not share it, and a handle that follows it does
    not pickle.

    Timeouts follow it, and waiting takes no real time: `acquire` and `acquire_async` move the clock to the next instant
    that matters, which is when time alone admits the request or its timeout passes. If several wait, the clock goes to
    the first of their instants. A request that waits for what others hold cannot know whether they are about to give it
    back: it moves the clock after 20 ms of real time in which no wait has begun or ended. If that is too soon, or if a
    test moves the clock under a request that waits, make the clock with `auto_advance=False`.

        with clock:
            slots = sl.anonymous(sl.LimitSet("slots", [sl.Concurrency("c", 1)]))["slots"]
        held = slots.acquire()
        before = clock.now
        with pytest.raises(sl.AcquireTimeout):
            slots.acquire(timeout=3600)  # at once
        assert clock.now == before + 3600
    """

    __slots__ = ()

    def __new__(cls, now: Instant = _START, *, auto_advance: bool = True) -> Self:
        """Makes a clock.

        Args:
            now: The time it shows; by default the beginning of the year 2000, UTC.
            auto_advance: Whether waiting moves the clock. If not, a request waits until the test moves it.
        """
        return super().__new__(cls, _since_epoch(now), auto_advance=auto_advance)

    def advance(self, seconds: float | timedelta) -> None:
        """Moves the clock forward.

        Args:
            seconds: By how much. Exactly the `retry_after` of a refusal is enough for its request to be admitted.

        Raises:
            ValueError: It is negative.
        """
        is_negative = seconds < timedelta(0) if isinstance(seconds, timedelta) else seconds < 0
        if is_negative:
            raise ValueError(f"{seconds!r} is negative: the clock only goes forward")
        self._advance(seconds)

    def set(self, now: Instant) -> None:
        """Moves the clock to an instant.

        Args:
            now: The instant, not before the clock's current time.

        Raises:
            ValueError: The instant has passed.
        """
        self._set(_since_epoch(now))

    def __enter__(self) -> Self:
        _current.append(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        _current.remove(self)

    def __repr__(self) -> str:
        return f"<VirtualClock at {(_EPOCH + timedelta(seconds=self.now)).isoformat()}>"


# The clocks that are entered; the last one applies.
_current: list[VirtualClock] = []


def current_clock() -> VirtualClock | None:
    """The clock for a segment that is opened now without naming one; None for real time."""
    return _current[-1] if _current else None


def _since_epoch(now: Instant) -> float | timedelta:
    if not isinstance(now, datetime):
        return now
    if now.tzinfo is None:
        raise ValueError(f"{now!r} has no time zone: write datetime(..., tzinfo=timezone.utc)")
    return now - _EPOCH
