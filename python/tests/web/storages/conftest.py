"""The memory storage that comes with `limits`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from limits.storage import MemoryStorage


@pytest.fixture
def memory() -> Iterator[MemoryStorage]:
    storage = MemoryStorage()
    yield storage
    storage.timer.cancel()
    storage.timer.join()
