"""The enumerations that Concurry's calls take, with the spellings that it accepts."""

from __future__ import annotations

from enum import Enum

from typing_extensions import Self

_IGNORED = str.maketrans("", "", " -_.:;,")


def _plain(text: str) -> str:
    return text.translate(_IGNORED).lower()


class _SpelledEnum(str, Enum):
    """Finds members by name or alias, ignoring case, spaces and punctuation."""

    aliases: tuple[str, ...]

    def __new__(cls, name: str, *aliases: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.aliases = aliases
        return member

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if isinstance(value, str):
            # Concurry's own members are strings too, and not all of them print as their values.
            wanted = _plain(str(value.value if isinstance(value, Enum) else value))
            for member in cls:
                if wanted in map(_plain, (member.value, *member.aliases)):
                    return member
        known = ", ".join(member.value for member in cls)
        raise ValueError(f"Could not find enum with value {value!r}; available: [{known}]")

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __format__(self, format_spec: str) -> str:
        return format(str(self.value), format_spec)


class ExecutionMode(_SpelledEnum):
    """The kind of workers that share a limit set. Here one mechanism serves all of them."""

    Auto = "Auto"
    Sync = "Sync", "synchronous"
    Asyncio = "Asyncio", "async", "asynchronous"
    Threads = "Threads", "thread"
    Processes = "Processes", "proc", "procs", "process"
    Ray = "Ray"


class LoadBalancingAlgorithm(_SpelledEnum):
    """How a pool chooses among its limit sets."""

    RoundRobin = "RoundRobin", "rr"
    LeastActiveLoad = "LeastActiveLoad", "active"
    LeastTotalLoad = "LeastTotalLoad", "total"
    Random = "Random", "rand"


class RateLimitAlgorithm(_SpelledEnum):
    """How a rate limit counts."""

    TokenBucket = "TokenBucket", "token"
    LeakyBucket = "LeakyBucket", "leaky"
    SlidingWindow = "SlidingWindow", "sliding"
    FixedWindow = "FixedWindow", "fixed"
    GCRA = "GCRA", "generic cell rate algorithm", "generic cell rate"


class PollingAlgorithm(_SpelledEnum):
    """How often Concurry polls while it waits. Accepted without effect: waiters here are woken."""

    Fixed = "Fixed"
    Adaptive = "Adaptive"
    Exponential = "Exponential"
    Progressive = "Progressive"


class RateWindow(_SpelledEnum):
    """Named windows. Also found by words such as `"minute"`, `"mins"` or `"per_minute"`."""

    Secondly = "Secondly", "second", "sec"
    Minutely = "Minutely", "minute", "min"
    Hourly = "Hourly", "hour", "hr"
    Daily = "Daily", "day"
    Weekly = "Weekly", "week", "wk"

    @classmethod
    def _missing_(cls, value: object) -> RateWindow:
        if isinstance(value, str):
            singular = _plain(value).removeprefix("per").removesuffix("s")
            for member in cls:
                if singular in member.aliases:
                    return member
        return super()._missing_(value)

    def to_seconds(self) -> float:
        """The length of the window in seconds."""
        return _SECONDS[self]


_SECONDS = {
    RateWindow.Secondly: 1.0,
    RateWindow.Minutely: 60.0,
    RateWindow.Hourly: 3600.0,
    RateWindow.Daily: 86_400.0,
    RateWindow.Weekly: 604_800.0,
}
