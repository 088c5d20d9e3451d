"""Fixtures for pytest: segments that are removed, and a clock that is moved by hand.

A test suite asks for them in its `conftest.py`; nothing of this is loaded otherwise:

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

A test that asks for `shmlimit_clock` puts everything under it that is opened in this process until the test ends: by
the test, by an application that it makes, by the `limits` storage. What was opened before, such as by a module when it
was imported, goes by the real time: open it in a function that the test calls.
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
    """What the fixture `shmlimit_segment` is: a function that creates a segment of its own with each call."""

    def __call__(self, *sets: LimitSet, **options: Any) -> Segment:
        """Creates a segment and opens it.

        Args:
            sets: What it holds.
            options: As those of `shmlimit.open`.
        """


@pytest.fixture
def shmlimit_clock() -> Iterator[VirtualClock]:
    """The clock of all that the test opens. It stands at the beginning of the year 2000, UTC, until it is moved."""
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def shmlimit_segment() -> Iterator[OpenSegment]:
    """Creates segments, of the sets that it is called with, that no other test sees and that are removed in the end."""
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
