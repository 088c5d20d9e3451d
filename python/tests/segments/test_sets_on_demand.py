"""Sets that are made when a process asks for them first."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl

CONFIG: dict[str, Any] = {
    "segment": {"sets_on_demand": "operation", "max_sets_on_demand": 2},
    "set": [
        {
            "name": "operation",
            "limit": [{"name": "requests", "kind": "calls", "capacity": 2, "window": "1h"}],
        }
    ],
}


def _check(path: str) -> bool:
    return bool(sl.open(path)["upload"].check())


def test_processes_share_a_set_that_the_first_of_them_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    segment = sl.open(path, CONFIG)
    assert list(segment) == ["operation"]
    assert "upload" not in segment
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sorted(pool.map(_check, [str(path)] * 3)) == [False, True, True]
    assert list(segment) == ["operation", "upload"]
    assert not segment["upload"].check()
    assert segment["operation"].check()


def test_a_name_beyond_the_last_copy_is_unknown(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "limits", CONFIG)
    assert [segment[name].name for name in ("a", "b")] == ["a", "b"]
    with pytest.raises(sl.UnknownSet, match=r"a, b|`a`"):
        segment["c"]
