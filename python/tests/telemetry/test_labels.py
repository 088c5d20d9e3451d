"""The labels of holds, if declared: in snapshots, for all processes."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl
from shmlimit.testing import OpenSegment

SLOTS = sl.LimitSet("work", [sl.Concurrency("slots", 4)], labels=True)


def labels_in(holds: list[dict[str, Any]]) -> list[str | None]:
    return [hold.get("label") for hold in holds]


def labels_of(segment: sl.Segment) -> list[str | None]:
    return labels_in([hold for each in segment.snapshot()["sets"] for hold in each["holds"]])


def test_each_permit_that_is_held_has_the_label_of_its_handle(shmlimit_segment: OpenSegment) -> None:
    segment = shmlimit_segment(SLOTS)
    work = segment["work"]
    with (
        work.labelled("import").acquire(),
        work.try_acquire(),
        pickle.loads(pickle.dumps(work.labelled("x" * 70))).acquire(),
    ):
        assert labels_of(segment) == ["import", None, "x" * 64]
    with work.try_acquire():
        assert labels_of(segment) == [None], "the place of one that was labelled"
        assert "label" not in segment.snapshot()["sets"][0]["holds"][0]


def test_a_label_is_cut_at_a_character(shmlimit_segment: OpenSegment) -> None:
    segment = shmlimit_segment(SLOTS)
    with segment["work"].labelled("x" * 63 + "ü").acquire():
        assert labels_of(segment) == ["x" * 63]


def test_other_processes_see_it(tmp_path: Path) -> None:
    path = tmp_path / "work.limits"
    segment = sl.open(path, SLOTS)
    look = "import json, sys, shmlimit as sl; print(json.dumps(sl.open(sys.argv[1]).snapshot()['sets'][0]['holds']))"
    with segment["work"].labelled("nightly-import").acquire():
        ran = subprocess.run([sys.executable, "-c", look, str(path)], check=True, capture_output=True, text=True)
    assert labels_in(json.loads(ran.stdout)) == ["nightly-import"]


def test_tasks_that_waited_have_theirs(shmlimit_segment: OpenSegment) -> None:
    segment = shmlimit_segment(sl.LimitSet("work", [sl.Concurrency("slots", 1)], labels=True))
    seen = []

    async def task(name: str) -> None:
        async with segment["work"].labelled(name).acquire_async():
            seen.append((name, labels_of(segment)))
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(task(f"task {number}") for number in range(8)))

    asyncio.run(main())
    assert sorted(seen) == [(f"task {number}", [f"task {number}"]) for number in range(8)]


def test_holds_of_keys_have_theirs(shmlimit_segment: OpenSegment) -> None:
    keyed = sl.LimitSet("work", [sl.Concurrency("slots", 1)], keyed=1_000, labels=True)
    segment = shmlimit_segment(keyed)
    names = [f"tenant {number}" for number in range(20)]
    permits = [segment["work"].labelled(f"for {name}").acquire(key=name) for name in names]
    holds = segment.snapshot()["sets"][0]["holds"]
    assert {hold["key"]["text"]: hold["label"] for hold in holds} == {name: f"for {name}" for name in names}
    for permit in permits:
        permit.release()


def test_only_sets_that_are_declared_to_keep_labels_do(shmlimit_segment: OpenSegment) -> None:
    segment = shmlimit_segment(sl.LimitSet("work", [sl.Concurrency("slots", 1)]))
    with segment["work"].labelled("import").acquire():
        assert labels_of(segment) == [None]
    assert "labels = true" in SLOTS.to_toml()
    assert "labels" not in sl.LimitSet("work", [sl.Concurrency("slots", 1)], labels=False).to_toml()


def test_where_nothing_is_held_there_is_nothing_to_label() -> None:
    with pytest.raises(sl.DeclarationError, match="nothing held to label"):
        sl.LimitSet("mail", [sl.Calls("sent", 1, "1h")], labels=True).to_toml()
