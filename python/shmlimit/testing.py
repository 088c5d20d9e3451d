"""Pytest fixtures: segments that are removed after the test, and a clock that is moved by hand.

A test suite asks for them in its `conftest.py`; otherwise nothing of this is loaded:

```python
pytest_plugins = ["shmlimit.testing"]
```

```python
import shmlimit as sl


def test_the_second_call_of_an_hour_is_refused(shmlimit_segment, shmlimit_clock):
    limits = shmlimit_segment(sl.LimitSet("mail", [sl.Calls("sent", 1, "1h", algorithm="fixed_window")]))["mail"]
    assert limits.check()
    assert not limits.check()
    shmlimit_clock.advance(3600)
    assert limits.check()
```

While a test uses `shmlimit_clock`, every segment opened in this process follows it: those that the test opens, that an
application which it creates opens, or that the `limits` storage opens. A segment opened earlier, such as by a module on
import, follows real time: open it in a function that the test calls.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import shmlimit
from shmlimit import LimitSet, Segment, VirtualClock

__all__ = ["OpenSegment", "shmlimit_clock", "shmlimit_segment"]

_SHARED_MEMORY = Path("/dev/shm")


class OpenSegment(Protocol):
    """The type of the fixture `shmlimit_segment`: a function that creates a new segment with each call."""

    def __call__(self, *sets: LimitSet, **options: Any) -> Segment:
        """Creates a segment and opens it.

        Args:
            sets: The sets that it holds.
            options: Options of `shmlimit.open`.
        """


@pytest.fixture
def shmlimit_clock() -> Iterator[VirtualClock]:
    """The clock of every segment that the test opens. It starts at the beginning of 2000, UTC."""
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def shmlimit_segment() -> Iterator[OpenSegment]:
    """Creates segments of the given sets. No other test sees them, and they are removed after the test."""
    directory = tempfile.mkdtemp(prefix="shmlimit-test-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)
    made: list[Segment] = []

    def open_segment(*sets: LimitSet, **options: Any) -> Segment:
        segment = shmlimit.open(Path(directory) / f"{len(made)}.limits", sets, **options)
        made.append(segment)
        return segment

    yield open_segment
    for segment in made:
        segment.close()
    shutil.rmtree(directory, ignore_errors=True)
