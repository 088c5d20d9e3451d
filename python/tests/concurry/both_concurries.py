"""Runs one script of calls against Concurry and against shmlimit.concurry, and reports what each did."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import concurry as original
import pytest

import shmlimit.concurry as ours

BOTH = [pytest.param(original, id="original"), pytest.param(ours, id="ours")]

ALGORITHMS = ["TokenBucket", "LeakyBucket", "SlidingWindow", "FixedWindow", "GCRA"]
REFUNDING = ["TokenBucket", "GCRA"]

# A window so long that nothing comes back while a script runs; exact in binary, since the original compares floats.
LONG = 8192.0

_WINDOW_WORD = "window" if hasattr(original, "RateWindow") else "window_seconds"

TAKES_FRACTIONS = hasattr(original, "RateWindow")
"""The original accepts fractional capacities from 0.13.2 on."""

KEYS = ("tokens", "call_count", "connections", "nonesuch")

_ERRORS = (TimeoutError, KeyError, IndexError, TypeError, RuntimeError, ValueError)


def rate(library: ModuleType, key: str, capacity: float, algorithm: str, window: float = LONG) -> Any:
    return library.RateLimit(key=key, capacity=capacity, algorithm=algorithm, **{_WINDOW_WORD: window})


def calls(library: ModuleType, capacity: float, algorithm: str = "SlidingWindow", window: float = LONG) -> Any:
    return library.CallLimit(capacity=capacity, algorithm=algorithm, **{_WINDOW_WORD: window})


@dataclass
class Trace:
    """What a library did, step by step: values, kinds of errors, and the keys that it warned about.

    `named` has the keys that an error's message names, by step.
    """

    keys: tuple[str, ...]
    steps: list[tuple[object, ...]] = field(default_factory=list)
    named: dict[int, set[str]] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)

    def __call__(self, step: Callable[[], Any]) -> Any:
        """Runs a step and notes the result."""
        self.warned = []
        result = None
        try:
            result = step()
            outcome: tuple[object, ...] = ("gave", _noted(result))
        except Exception as error:
            outcome = ("raised", _kind_of(error))
            self.named[len(self.steps)] = self._keys_in(str(error))
        self.steps.append((*outcome, [self._keys_in(text) for text in self.warned]))
        return result

    def _keys_in(self, text: str) -> set[str]:
        return {key for key in self.keys if key in text}


def _kind_of(error: Exception) -> str:
    return next(kind.__name__ for kind in _ERRORS if isinstance(error, kind))


def _noted(value: Any) -> object:
    if isinstance(value, (bool, str, int, float)) or value is None:
        return value
    if isinstance(value, dict):
        return {key: _noted(value[key]) for key in value if key not in ("window", "window_seconds")}
    if isinstance(value, (list, tuple)):
        return [_noted(each) for each in value]
    if hasattr(value, "acquisitions"):
        parts = value.acquisitions
        return {
            "successful": value.successful,
            "config": dict(value.config),
            "parts": {key: (part.requested, part.used, part.successful) for key, part in parts.items()},
        }
    return type(value).__name__


def _alike(one: object, other: object) -> bool:
    """Whether both are equal, apart from what comes back within moments."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, abs_tol=0.02)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other


class _Collector(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self.trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        # The list of known keys comes last and names all of them, so what precedes it is what the warning is about.
        text = record.getMessage()
        self.trace.warned.append(text.split(" is ignored")[0].split(". ")[0].split(", for it")[0])


@contextmanager
def _collecting(trace: Trace) -> Iterator[None]:
    collector = _Collector(trace)
    loggers = [logging.getLogger("concurry"), logging.getLogger("shmlimit.concurry")]
    for logger in loggers:
        logger.addHandler(collector)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(collector)


Script = Callable[[ModuleType, Trace], object]


def trace_of(script: Script, library: ModuleType, keys: tuple[str, ...] = KEYS) -> Trace:
    """Runs the script with the library, and returns what it did."""
    trace = Trace(keys)
    with _collecting(trace):
        script(library, trace)
    return trace


def assert_same(script: Script, keys: tuple[str, ...] = KEYS) -> None:
    """Asserts that both libraries do the same at each step, and that ours reports at least as much."""
    expected = trace_of(script, original, keys)
    actual = trace_of(script, ours, keys)
    assert expected.steps, "the script notes no step"
    for number, (one, other) in enumerate(zip(expected.steps, actual.steps, strict=True)):
        assert _alike(one, other), f"step {number}: the original {one}, ours {other}"
        assert expected.named.get(number, set()) <= actual.named.get(number, set()), f"step {number}"
