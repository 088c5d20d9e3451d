"""Pytest fixtures: segments that are removed after the test, and a clock that is moved by hand.

A test suite asks for them in its `conftest.py`; otherwise none of this is loaded:

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

While a test uses `shmlimit_clock`, every segment opened in this process follows it: those opened by the test, by an
application that the test creates, or by the `limits` storage. Fresh sets stand in for those that were opened earlier,
such as by a module on import: they have the same declaration, are in a file of this test, and follow the clock, too.

`shmlimit_fresh` does the latter in real time: whatever set this process asks, a fresh one stands in for it, so that no
test sees what another has counted, in this run or an earlier one, and workers of `pytest-xdist` do not share limits. To
use it for all of its tests, a suite has

```python
@pytest.fixture(autouse=True)
def fresh_limits(shmlimit_fresh):
    pass
```

Forked children use the stand-ins as well. Processes that are started otherwise, and handles that they unpickle, use the
files themselves.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

import shmlimit
from shmlimit import LimitSet, Segment, VirtualClock
from shmlimit._stand_ins import StandIns

__all__ = ["OpenSegment", "shmlimit_clock", "shmlimit_fresh", "shmlimit_segment"]

_SHARED_MEMORY = Path("/dev/shm")


class OpenSegment(Protocol):
    """The type of the fixture `shmlimit_segment`: a function that creates a new segment with each call."""

    def __call__(self, *sets: LimitSet, **options: Any) -> Segment:
        """Creates a segment and opens it.

        Args:
            sets: The sets that it holds.
            options: Options of `shmlimit.open`.
        """


@contextmanager
def _own_directory() -> Iterator[Path]:
    """A directory for segments of one test, removed with what it contains."""
    directory = tempfile.mkdtemp(prefix="shmlimit-test-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def shmlimit_clock() -> Iterator[VirtualClock]:
    """The clock of every segment that the test opens or asks. It starts at the beginning of 2000, UTC."""
    with _own_directory() as directory, VirtualClock() as clock, StandIns(directory, clock).asked():
        yield clock


@pytest.fixture
def shmlimit_fresh() -> Iterator[None]:
    """Puts fresh sets with the same declarations in place of all that the test asks; nothing else uses them."""
    with _own_directory() as directory, StandIns(directory, None).asked():
        yield


@pytest.fixture
def shmlimit_segment() -> Iterator[OpenSegment]:
    """Creates segments of the given sets. No other test sees them, and they are removed after the test."""
    made: list[Segment] = []
    with _own_directory() as directory:

        def open_segment(*sets: LimitSet, **options: Any) -> Segment:
            segment = shmlimit.open(directory / f"{len(made)}.limits", sets, **options)
            made.append(segment)
            return segment

        yield open_segment
        for segment in made:
            segment.close()
