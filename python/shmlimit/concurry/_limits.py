"""Declarations of limits. A `LimitSet` puts them into shared memory; on their own they count nothing."""

from __future__ import annotations

import logging
import math
import warnings
import weakref
from decimal import Decimal
from numbers import Real
from typing import Any, ClassVar, Protocol

from ._constants import RateLimitAlgorithm, RateWindow
from ._settings import global_config
from ._statistics import rate_statistics, resource_statistics

logger = logging.getLogger(__name__)

Amount = int | float | Decimal


class Home(Protocol):
    """Where a limit's state is: the last set made with it."""

    def remaining_of(self, key: str) -> float:
        """How much of the limit may be taken now."""
        ...


class FrozenError(ValueError, AttributeError):
    """A field of a limit or pool cannot be changed after it was made."""


class Limit:
    """What all limits have in common.

    Attributes:
        key: The name of the limit in requests.
    """

    key: str

    _fields: ClassVar[tuple[str, ...]] = ("key",)
    _home: weakref.ref[Home] | None = None

    def __init__(self, *, key: str) -> None:
        if not isinstance(key, str):
            raise ValueError(f"a limit's key must be a string, got: {key!r}")
        self._set(key=key)

    def _set(self, **values: object) -> None:
        # Bypasses `__setattr__`, which forbids assignment.
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenError(f"a {type(self).__name__} cannot be changed; declare another one")

    def __delattr__(self, name: str) -> None:
        raise FrozenError(f"a {type(self).__name__} cannot be changed; declare another one")

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field) for field in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Limit) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field}={getattr(self, field)!r}" for field in self._fields)
        return f"{type(self).__name__}({fields})"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_home"}

    def _belongs_to(self, home: Home) -> None:
        self._set(_home=weakref.ref(home))

    def _remaining(self) -> float | None:
        home = None if self._home is None else self._home()
        return None if home is None else home.remaining_of(self.key)

    def can_acquire(self, requested: Amount) -> bool:
        """Whether that much could be taken now. Others may take it before you do."""
        raise NotImplementedError(f"{type(self).__name__} does not say what can be acquired")

    def validate_usage(self, requested: Amount, used: Amount) -> None:
        """Checks what was used against what was requested.

        Raises:
            ValueError: Such usage is impossible.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what usage is valid")

    def get_stats(self) -> dict[str, Any]:
        """How full the limit is, in Concurry's terms: unused if it is in no `LimitSet`."""
        raise NotImplementedError(f"{type(self).__name__} has no statistics")


class RateLimit(Limit):
    """An amount per window of time.

    Args:
        key: The name of the limit in requests.
        capacity: How much is admitted per window, and at once. Need not be whole; `math.inf` admits everything.
        window: Seconds, a `RateWindow`, or a word for one such as `"minute"`.
        per: Another name for `window`.
        window_seconds: The name of `window` in Concurry up to 0.13.0; deprecated there and here.
        algorithm: How it counts; defaults to `global_config.defaults.rate_limit_algorithm`.

    Raises:
        ValueError: A value is out of range, or the window is given twice or not at all.

    Attributes:
        window: The window in seconds.
        window_seconds: The same.
        algorithm: How it counts.
        capacity: How much is admitted per window.
    """

    window: float
    algorithm: RateLimitAlgorithm
    capacity: float

    _fields = ("key", "window", "algorithm", "capacity")

    def __init__(
        self,
        *,
        key: str,
        capacity: float,
        window: float | str | RateWindow | None = None,
        per: float | str | RateWindow | None = None,
        window_seconds: float | str | None = None,
        algorithm: RateLimitAlgorithm | str | None = None,
    ) -> None:
        super().__init__(key=key)
        length = _window(key, window, per, window_seconds)
        if algorithm is None:
            algorithm = global_config.defaults.rate_limit_algorithm
        self._set(
            window=_seconds(length),
            algorithm=RateLimitAlgorithm(algorithm),
            capacity=_capacity(capacity, key),
        )

    @property
    def window_seconds(self) -> float:
        """The window in seconds."""
        return self.window

    def can_acquire(self, requested: Amount) -> bool:
        """Whether that much could be taken now. Others may take it before you do."""
        remaining = self._remaining()
        return requested <= (self.capacity if remaining is None else remaining)

    def validate_usage(self, requested: Amount, used: Amount) -> None:
        """Warns if more was used than requested: the excess was spent, and is charged."""
        if used > requested:
            logger.warning(
                "Usage (%s) exceeds requested amount (%s) for limit '%s'. The excess is charged too. "
                "Request more, or check how usage is counted.",
                used,
                requested,
                self.key,
            )

    def params_signature(self) -> str:
        """A short text that identifies the limit's behaviour, such as `"c300w60gcr"`.

        Returns:
            The capacity, the window in seconds and the algorithm's first three letters; whole numbers have no point.
        """
        return f"c{_shortly(self.capacity)}w{_shortly(self.window)}{self.algorithm.name[:3].lower()}"

    def get_stats(self) -> dict[str, Any]:
        """How full the limit is, in Concurry's terms: unused if it is in no `LimitSet`."""
        remaining = self._remaining()
        return rate_statistics(
            key=self.key,
            algorithm=self.algorithm,
            capacity=self.capacity,
            window=self.window,
            remaining=self.capacity if remaining is None else remaining,
        )


class CallLimit(RateLimit):
    """A number of calls per window. Its key is `"call_count"`, and a request that does not name it takes 1.

    Args:
        capacity: How many calls are admitted per window.
        window: The window, as for a `RateLimit`.
        per: Another name for `window`.
        window_seconds: The name of `window` in Concurry up to 0.13.0; deprecated there and here.
        algorithm: As for a `RateLimit`.
        key: Accepted for compatibility, and replaced by `"call_count"`.
    """

    CallLimit_key: ClassVar[str] = "call_count"

    def __init__(
        self,
        *,
        capacity: float,
        window: float | str | RateWindow | None = None,
        per: float | str | RateWindow | None = None,
        window_seconds: float | str | None = None,
        algorithm: RateLimitAlgorithm | str | None = None,
        key: object = None,
    ) -> None:
        length = _window(self.CallLimit_key, window, per, window_seconds)
        super().__init__(key=self.CallLimit_key, capacity=capacity, window=length, algorithm=algorithm)

    def validate_usage(self, requested: Amount, used: Amount) -> None:
        """Checks usage: exactly 1 if 1 was requested, otherwise at least 0.

        Raises:
            ValueError: 1 was requested and the usage is not 1, or the usage is negative.
        """
        if requested == 1 and used != 1:
            raise ValueError(
                f"CallLimit usage must be 1 for implicit acquisition (requested=1), got: {used}. "
                f"CallLimit '{self.key}' defaults to 1 call per acquisition."
            )
        if used < 0:
            raise ValueError(f"CallLimit usage cannot be negative, got: {used} for limit '{self.key}'")
        super().validate_usage(requested, used)


class ResourceLimit(Limit):
    """A limit on how many of a resource are held at a time. They are given back on release.

    Args:
        key: The name of the limit in requests.
        capacity: How many there are, at least 1.

    Raises:
        ValueError: The capacity is not a whole number of at least 1.

    Attributes:
        capacity: How many there are.
    """

    capacity: int

    _fields = ("key", "capacity")

    def __init__(self, *, key: str, capacity: float) -> None:
        super().__init__(key=key)
        given = _number(capacity, key)
        if not given >= 1:
            raise ValueError(f"ResourceLimit capacity must be >= 1, got: {capacity} for limit '{key}'")
        if not isinstance(given, int):
            raise ValueError(f"ResourceLimit capacity must be an integer, got: {capacity} for limit '{key}'")
        self._set(capacity=given)

    def can_acquire(self, requested: Amount) -> bool:
        """Whether that many are free now. Others may take them before you do."""
        remaining = self._remaining()
        return requested <= (self.capacity if remaining is None else remaining)

    def validate_usage(self, requested: Amount, used: Amount) -> None:
        """Accepts any usage: everything that was taken comes back."""

    def get_stats(self) -> dict[str, Any]:
        """How many are taken and free, in Concurry's terms."""
        remaining = self._remaining()
        free = self.capacity if remaining is None else int(remaining)
        return resource_statistics(key=self.key, capacity=self.capacity, free=free)


def _window(
    key: str,
    window: float | str | RateWindow | None,
    per: float | str | RateWindow | None,
    window_seconds: float | str | None,
) -> float | str | RateWindow:
    """The window, from whichever of its three arguments is given. Warnings blame the caller's caller."""
    if window_seconds is not None:
        if window is not None or per is not None:
            other = "window" if window is not None else "per"
            raise ValueError(
                f"Pass either `{other}=` or `window_seconds=`, not both. "
                "`window_seconds` is a deprecated alias for `window`."
            )
        warnings.warn(
            "`window_seconds=` is deprecated; use `window=` instead, which takes seconds and words like 'minutely'.",
            DeprecationWarning,
            stacklevel=3,
        )
        return window_seconds
    if window is not None and per is not None:
        raise ValueError("Pass either `window=` or `per=`, not both. They are aliases.")
    length = window if window is not None else per
    if length is None:
        raise ValueError(f"limit {key!r} needs a window: write window=60, or window='minute'")
    return length


def _shortly(number: float) -> str:
    if math.isinf(number):
        return "inf"
    return str(int(number)) if number == int(number) else repr(number)


def _seconds(window: float | str | RateWindow) -> float:
    if isinstance(window, str):
        try:
            seconds = float(window)
        except ValueError:
            return RateWindow(window).to_seconds()
    elif isinstance(window, Real) and not isinstance(window, bool):
        seconds = float(window)
    else:
        raise ValueError(f"a window must be a number of seconds or a RateWindow, got: {window!r}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"a window must be longer than 0 seconds, got: {window!r}")
    return seconds


def _capacity(capacity: object, key: str) -> int | float:
    number = _number(capacity, key)
    if not number > 0:
        raise ValueError(f"the capacity of limit {key!r} must be greater than 0, got: {capacity!r}")
    return number


def _number(capacity: object, key: str) -> int | float:
    if not isinstance(capacity, (Real, str, Decimal)):
        raise ValueError(f"the capacity of limit {key!r} must be a number, got: {capacity!r}")
    number = float(capacity)
    return int(number) if math.isfinite(number) and number == int(number) else number


__all__ = ["Amount", "CallLimit", "FrozenError", "Home", "Limit", "RateLimit", "ResourceLimit"]
