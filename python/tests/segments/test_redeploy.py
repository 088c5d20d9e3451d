"""A segment that exists with another declaration: what a redeploy and a notebook meet."""

import json
import logging
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import limitctl

import shmlimit as sl
from shmlimit import concurry

HOUR = 3600


def of(capacity, **fields):
    return sl.LimitSet("api", [sl.Calls("requests", capacity, HOUR, **fields)])


def capacity_of(path):
    return sl.open(path).declaration()["set"][0]["limit"][0]["capacity"]


def test_a_cell_that_is_run_again_with_another_number_changes_the_limit(segment_path, caplog):
    first = sl.open(segment_path, of(5))["api"]
    assert [bool(first.check()) for _ in range(6)] == [True] * 5 + [False]
    again = sl.open(segment_path, of(8))
    assert [bool(again["api"].check()) for _ in range(4)] == [False] * 4, "a raised limit does not grant the past"
    assert not first.check(), "the former handle goes by the same state"
    assert capacity_of(segment_path) == 8
    [record] = [each for each in caplog.records if each.name == "shmlimit"]
    assert record.levelno == logging.WARNING
    assert "capacity: declared 8, in the segment 5" in record.getMessage()
    assert (record.segment, record.set_name, record.outcome) == (str(segment_path), "api", "replaced")
    assert any("capacity" in each for each in record.differences)
    assert [each["outcome"] for each in again.mismatches] == ["replaced"]
    assert len(again.snapshot()["participants"]) == 1


def test_versions_go_up_and_never_down(segment_path, caplog):
    caplog.set_level(logging.INFO, "shmlimit")
    assert sl.open(segment_path, of(5), version=2).mismatches == []
    [up] = sl.open(segment_path, of(10), version=3).mismatches
    assert (up["outcome"], up["declared_version"], up["segment_version"]) == ("upgraded", 3, 2)
    for version in [2, None]:
        [down] = sl.open(segment_path, of(5), version=version).mismatches
        assert down["outcome"] == "kept_newer"
        assert capacity_of(segment_path) == 10
    levels = [record.levelno for record in caplog.records if record.name == "shmlimit"]
    assert levels == [logging.INFO, logging.WARNING], "what is said already is not said again"


def test_a_version_may_stand_in_the_file_or_beside_it(segment_path, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text("[segment]\nversion = 4\n" + of(5).to_toml().split("\n\n", 1)[1])
    sl.open(segment_path, file)
    assert sl.open(segment_path).snapshot()["sets"][0]["version"] == 4
    sl.open(segment_path, file, version=9)
    assert sl.open(segment_path).snapshot()["sets"][0]["version"] == 9
    for version in [0, -1, 2**63]:
        with pytest.raises(sl.DeclarationError, match="version"):
            sl.open(segment_path, of(5), version=version)
    with pytest.raises(sl.DeclarationError, match="version"):
        sl.open(segment_path, version=3)


def test_an_operators_change_survives_a_redeploy_of_the_same_version(segment_path, caplog):
    sl.open(segment_path, of(5), version=7)
    done = limitctl("edit", str(segment_path), "api", "requests", "capacity=50")
    assert done.returncode == 0, done.stderr
    [kept] = sl.open(segment_path, of(6), version=7).mismatches
    assert kept["outcome"] == "kept_edited"
    assert "limitctl apply" in caplog.text
    shown = limitctl("inspect", str(segment_path)).stdout
    assert "version 7, edited by an operator" in shown
    assert capacity_of(segment_path) == 50
    sl.open(segment_path, of(6), version=8)
    assert capacity_of(segment_path) == 6
    sl.open(segment_path).apply(of(60))
    sl.open(segment_path, of(6), version=8)
    assert capacity_of(segment_path) == 60, "as by `limitctl apply`"


def test_what_is_refused_says_the_command_that_helps(segment_path):
    sl.open(segment_path, of(5))
    with pytest.raises(sl.ConfigMismatch) as raised:
        sl.open(segment_path, of(6), on_mismatch="error")
    message = str(raised.value)
    assert message.startswith(str(segment_path))
    assert "capacity: declared 6, in the segment 5" in message
    command = shlex.split(raised.value.remedy.split("`")[1])
    assert command[:2] == ["limitctl", "edit"]
    assert limitctl(*command[1:]).returncode == 0
    sl.open(segment_path, of(6), on_mismatch="error")
    assert pickle.loads(pickle.dumps(raised.value)).remedy == raised.value.remedy

    with pytest.raises(sl.ConfigMismatch) as raised:
        sl.open(segment_path, of(6, algorithm="fixed_window"))
    assert 'algorithm: declared "fixed_window", in the segment "gcra"' in str(raised.value)
    command = shlex.split(raised.value.remedy.split("`")[1])
    assert limitctl(*command[1:]).returncode == 0
    sl.open(segment_path, of(6, algorithm="fixed_window"))
    with pytest.raises(ValueError, match="on_mismatch"):
        sl.open(segment_path, of(6), on_mismatch="replace")


HOLD = """
import sys
import shmlimit as sl
segment = sl.open(sys.argv[1])
print("attached", flush=True)
sys.stdin.readline()
"""


def test_a_segment_is_recreated_unless_another_process_has_it_open(segment_path):
    former = sl.open(segment_path, of(5))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(segment_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "attached\n"
        with pytest.raises(sl.ConfigMismatch, match=f"in use by process {other.pid}:"):
            sl.open(segment_path, of(6, algorithm="fixed_window"), on_mismatch="recreate_if_unused")
        assert former["api"].check()
        other.communicate("\n")
    recreated = sl.open(segment_path, of(6, algorithm="fixed_window"), on_mismatch="recreate_if_unused")
    assert recreated["api"].peek()["requests"].remaining == 6
    with pytest.raises(sl.Removed):
        former["api"].check()


WORKER = """
import json, sys
import shmlimit as sl
path, first = sys.argv[1], int(sys.argv[2])
sys.stdin.readline()
for restart in range(20):
    version = first + restart // 10
    sets = [sl.LimitSet(name, [sl.Calls("requests", 10 * version, 3600)]) for name in ("a", "b")]
    segment = sl.open(path, sets, version=version)
    segment["a"].check()
in_force = segment.declaration()
print(json.dumps([each["limit"][0]["capacity"] for each in in_force["set"]]), flush=True)
"""


def test_four_workers_of_two_releases_are_rolled_out_at_once(segment_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(segment_path), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in [1, 2, 1, 2]
    ]
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    said = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    for output, _ in said:
        assert all(capacity in (20, 30) for capacity in json.loads(output))
    described = sl.open(segment_path).snapshot()["sets"]
    assert [each["version"] for each in described] == [3, 3]
    assert [each["limit"][0]["capacity"] for each in sl.open(segment_path).declaration()["set"]] == [30, 30]


def test_a_process_that_opens_a_segment_300_times_is_attached_once(segment_path):
    segments = [sl.open(segment_path, of(1000), participants=2, strict=number % 2 == 0) for number in range(300)]
    assert len(segments[0].snapshot()["participants"]) == 1
    for segment in segments:
        segment.close()
    permit = sl.open(segment_path)["api"].acquire()
    assert len(sl.open(segment_path).snapshot()["participants"]) == 1
    permit.release()


def test_concurrys_sets_that_share_a_path_apply_another_capacity(segment_path, caplog):
    def share(capacity):
        limit = concurry.ResourceLimit(key="connections", capacity=capacity)
        return concurry.LimitSet([limit], shared=True, mode="process", path=segment_path)

    former, renewed = share(2), share(3)
    held = [former.acquire(timeout=0, requested={"connections": 1}) for _ in range(3)]
    assert "capacity: declared 3, in the segment 2" in caplog.text
    for acquisition in held:
        acquisition.__enter__()
        acquisition.__exit__(None, None, None)
    del renewed


def test_another_mode_is_logged_with_the_command_that_helps_and_changes_nothing(segment_path, caplog):
    sl.open(segment_path, of(5)).close()
    [kept] = sl.open(segment_path, of(5), mode=0o660).mismatches
    assert (kept["set"], kept["outcome"]) == (None, "kept_mode")
    assert f"chmod 0660 {segment_path}" in kept["message"]
    [record] = [each for each in caplog.records if each.name == "shmlimit"]
    assert record.levelno == logging.WARNING
    assert kept["message"] in record.getMessage()
    assert segment_path.stat().st_mode & 0o777 == 0o600
    segment_path.chmod(0o660)
    assert sl.open(segment_path, of(5), mode=0o660).mismatches == []
    assert sl.open(segment_path, of(5)).mismatches == []


GUIDE = Path(__file__).parents[3] / "docs" / "rollouts.md"


def rows_of_what_is_left():
    """The rows of the guide: the algorithm, the capacity before and after, and how much is left afterwards."""
    lines = iter(GUIDE.read_text().splitlines())
    header = next(line for line in lines if line.startswith("| with 100 used |"))
    columns = [re.findall("`(.*?)`", cell) for cell in header.split("|")[2:4]]
    for line in lines:
        if numbers := re.match(r"\| (\d+) (?:raised|lowered) to (\d+) \|(.*)\|(.*)\|", line):
            for algorithms, cell in zip(columns, numbers.groups()[2:], strict=True):
                left = cell.split()[0]
                for algorithm in algorithms:
                    yield algorithm, int(numbers[1]), int(numbers[2]), 0 if left == "none" else int(left)


@pytest.mark.parametrize(("algorithm", "before", "after", "left"), list(rows_of_what_is_left()))
def test_what_is_left_after_a_changed_number_is_what_the_guide_says(segment_path, algorithm, before, after, left):
    clock = sl.VirtualClock(1_767_225_600)
    first = sl.open(segment_path, of(before, algorithm=algorithm), clock=clock)["api"]
    assert first.check({"requests": 100})
    changed = sl.open(segment_path, of(after, algorithm=algorithm), clock=clock)["api"]
    assert sum(bool(changed.check()) for _ in range(max(before, after))) == left
