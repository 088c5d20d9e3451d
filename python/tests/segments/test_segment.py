"""Declarations, segments, errors."""

import copy
import dataclasses
import errno
import gc
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import weakref
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import shmlimit as sl

TOML = """
[[set]]
name = "openai"
metadata = { region = "eu" }
  [[set.limit]]
  name = "tokens"
  kind = "rate"
  capacity = 1000
  window = "60s"
"""


def test_the_same_declaration_opens_the_segment_however_it_is_written(segment_path, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(TOML)
    in_python = sl.LimitSet("openai", [sl.Rate("tokens", 1000, 60)], metadata={"region": "eu"})
    as_mapping = {
        "set": [
            {
                "name": "openai",
                "metadata": {"region": "eu"},
                "limit": [{"name": "tokens", "kind": "rate", "capacity": 1000, "window": timedelta(minutes=1)}],
            }
        ]
    }
    for config in [file, str(file), in_python, [in_python], as_mapping]:
        segment = sl.open(segment_path, config)
        assert list(segment) == ["openai"]
    assert len(segment) == 1
    assert "openai" in segment
    assert "other" not in segment


def test_the_path_may_be_declared(segment_path, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(f'[segment]\npath = "{segment_path}"\n{TOML}')
    assert sl.open(config=file).path == str(segment_path)
    with pytest.raises(sl.DeclarationError, match="path"):
        sl.open(config=sl.LimitSet("set", [sl.Calls("c", 1, 1)]))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (sl.Rate("r", "1.5", "1m", unit=Decimal("0.001"), burst=0.5), {"capacity": "1.5", "burst": "0.5"}),
        (sl.Calls("c", 5, 0.25, algorithm="fixed_window", align="first_use"), {"window": "250ms"}),
        (sl.Calls("c", 5, timedelta(days=1)), {"window": "1d"}),
        (sl.Calls("c", "unlimited"), {"capacity": "unlimited"}),
        (sl.Budget("b", 5, "calendar:month", utc_offset="+05:30"), {"window": "calendar:month"}),
        (sl.Concurrency("c", 5, lease=30), {"lease": "30s"}),
        (sl.Concurrency("c", 5, adaptive="aimd", ceiling=10, latency_limit=2), {"adaptive": "aimd", "ceiling": 10}),
        (sl.Calls("c", 5, algorithm="leaky_bucket", rate=2, interval=1), {"algorithm": "leaky_bucket"}),
        (
            sl.Calls("c", 9, "1s", algorithm="gcra", credit={"batch": 3}),
            {"credit": {"batch": 3, "window_coupled": False}},
        ),
        (sl.Calls("c", algorithm="leaky_bucket", rate=2), {"capacity": 60, "rate": 2, "interval": "1s"}),
        (sl.Calls("c", algorithm="leaky_bucket", interval="1m"), {"capacity": 60, "rate": 1, "interval": "1m"}),
        (sl.Rate("c", 9, algorithm="leaky_bucket", rate=0.5, interval=1), {"rate": "0.5", "interval": "1s"}),
    ],
)
def test_every_field_arrives_in_the_segment(segment_path, limit, expected):
    segment = sl.open(segment_path, sl.LimitSet("set", [limit]))
    (declared,) = segment.declaration()["set"][0]["limit"]
    assert {name: declared[name] for name in expected} == expected


def test_what_a_set_takes_is_known_before_it_is_made(segment_path):
    requests = sl.Calls("requests", 500, "60s", algorithm="sliding_window")
    declared = sl.LimitSet("tenants", [requests, sl.Concurrency("in_flight", 4)], keyed=100)
    sl.open(segment_path, declared)
    assert declared.memory == segment_path.stat().st_size
    with pytest.raises(sl.DeclarationError, match="capacity"):
        sl.LimitSet("tenants", [sl.Calls("requests", 0, "60s")]).memory  # noqa: B018
    with pytest.raises(sl.DeclarationError, match="declare fewer keys"):
        sl.LimitSet("tenants", [dataclasses.replace(requests, entries=65_536)], keyed=10**9).memory  # noqa: B018


def test_the_mode_of_the_file_and_its_participants_can_be_given(segment_path, tmp_path):
    declared = sl.LimitSet("set", [sl.Calls("c", 5, 60)])
    segment = sl.open(segment_path, declared, mode=0o660, participants=3)
    assert stat.S_IMODE(segment_path.stat().st_mode) == 0o660
    assert segment.declaration()["segment"]["participants"] == 3
    with pytest.raises(sl.DeclarationError, match="segment"):
        sl.open(tmp_path / "other", {"set": []}, participants=3)
    with pytest.raises(sl.DeclarationError, match="created"):
        sl.open(segment_path, mode=0o600)


@pytest.mark.parametrize(("lock", "other"), [("slot", "robust"), ("robust", "slot")])
def test_a_segment_has_the_locks_that_it_is_created_with(segment_path, lock, other):
    declared = sl.LimitSet("set", [sl.Calls("c", 5, 60)])
    segment = sl.open(segment_path, declared, lock=lock)
    assert segment.declaration()["segment"]["lock"] == lock
    assert segment["set"].check()
    snapshot = segment.snapshot()
    assert snapshot["lock_kind"] == lock
    (own,) = snapshot["participants"]
    # A namespace is only named if the process is in another one.
    assert (own["pid"], own.get("pid_namespace")) == (os.getpid(), None)
    # A segment keeps its kind of lock for good.
    with pytest.raises(sl.ConfigMismatch, match="lock"):
        sl.open(segment_path, declared, lock=other)
    with pytest.raises(sl.InUse) as raised:
        sl.remove(segment_path)
    assert raised.value.pids == [own["pid"]]
    assert raised.value.pid_namespaces == [None]
    with pytest.raises(sl.DeclarationError, match="lock"):
        sl.open(segment_path, declared, lock="spin")  # type: ignore[arg-type]


def test_what_cannot_be_declared_says_where_it_is_wrong(segment_path):
    with pytest.raises(sl.DeclarationError, match=r'set "s" / limit "c" / capacity') as raised:
        sl.open(segment_path, sl.LimitSet("s", [sl.Calls("c", 0, 60)]))
    assert isinstance(raised.value, ValueError)
    with pytest.raises(sl.DeclarationError, match="algorthm"):
        sl.open(segment_path, {"set": [{"name": "s", "limit": [{"algorthm": "gcra"}]}]})
    with pytest.raises(TypeError, match="not a declaration"):
        sl.open(segment_path, [sl.Calls("c", 1, 60)])
    with pytest.raises(sl.DeclarationError, match="No such file"):
        sl.open(segment_path, "/nonexistent/limits.toml")
    assert not segment_path.exists()


def test_another_declaration_is_a_mismatch_that_names_each_difference(segment_path):
    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 60)]))
    with pytest.raises(sl.ConfigMismatch) as raised:
        sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 6, 60)]), on_mismatch="error")
    assert raised.value.path == str(segment_path)
    assert 'set "set" / limit "c" / capacity: declared 6, in the segment 5' in raised.value.differences


def test_limits_change_in_place_and_other_things_do_not(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    for _ in range(5):
        assert segment["set"].check()
    assert not segment["set"].check()
    changes = segment.apply(sl.LimitSet("set", [sl.Calls("c", 8, 3600)]))
    assert any("capacity" in change for change in changes)
    assert segment.declaration()["set"][0]["limit"][0]["capacity"] == 8
    with pytest.raises(sl.ConfigMismatch) as raised:
        segment.apply(sl.LimitSet("set", [sl.Concurrency("c", 8)]))
    assert raised.value.differences


def test_a_snapshot_is_plain_data(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)], keyed=10))
    segment["set"].check(key="ann")
    snapshot = segment.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["sets"][0]["name"] == "set"
    (key,) = segment.key_snapshots("set")
    assert key["key"] == segment.key_snapshot("set", "ann")["key"]
    assert segment.key_snapshot("set", "bob") is None
    assert segment.recover()["sets"][0]["set"] == "set"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, (sl.NotFound, FileNotFoundError)),
        (lambda path: path.write_bytes(b"x" * 8192), (sl.InvalidSegment, OSError)),
        (lambda path: path.write_bytes(b""), (sl.SegmentError, OSError)),
        (lambda path: path.symlink_to("/dev/null"), (sl.SegmentError, OSError)),
    ],
)
def test_a_file_that_is_no_segment_says_so(segment_path, make, expected):
    make(segment_path)
    with pytest.raises(expected) as raised:
        sl.open(segment_path)
    assert str(segment_path) in str(raised.value)
    assert isinstance(raised.value, sl.Error)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert type(copied) is type(raised.value)
    assert str(copied) == str(raised.value)


def test_a_segment_in_use_is_removed_by_force_only(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    with pytest.raises(sl.InUse):
        sl.remove(segment_path)
    sl.remove(segment_path, force=True)
    assert not segment_path.exists()
    with pytest.raises(sl.Removed):
        segment["set"].check()


def test_pickles_find_what_the_process_has_open_and_reopen_what_was_replaced(segment_path):
    declared = sl.LimitSet("set", [sl.Calls("c", 5, 3600)])
    segment = sl.open(segment_path, declared)
    pickled = pickle.dumps(segment["set"])
    assert pickle.loads(pickled) is segment["set"]
    assert pickle.loads(pickle.dumps(segment)) is segment
    sl.remove(segment_path, force=True)
    replaced = sl.open(segment_path, declared)
    assert pickle.loads(pickled) is replaced["set"]
    assert pickle.loads(pickled).check()


def test_what_arrived_pickled_stays_open_for_the_next_to_arrive(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    pickled = pickle.dumps(segment["set"])
    participants = len(segment.snapshot()["participants"])
    del segment
    gc.collect()
    for _ in range(3):
        assert pickle.loads(pickled).limit_names == ("c",)
        gc.collect()
    # The segment that stays open, and the one that looks.
    assert len(sl.open(segment_path).snapshot()["participants"]) <= participants + 1


@pytest.mark.parametrize("strict", [False, True])
def test_however_many_handles_arrive_they_are_one_participant(segment_path, strict):
    limits = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)], keyed=10), strict=strict)["set"]
    other = sl.open(segment_path, strict=not strict)["set"]
    pickles = [pickle.dumps(limits), pickle.dumps(other)]
    arrived = [pickle.loads(pickled) for _ in range(300) for pickled in pickles]
    assert {id(each) for each in arrived} == {id(limits), id(other)}
    assert [arrived[0].strict, arrived[1].strict] == [strict, not strict]
    assert weakref.ref(limits)() is limits


def test_a_pickle_opens_as_its_handle_was_opened(segment_path):
    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    segment_path.chmod(0o666)
    with pytest.raises(sl.PermissionDenied) as raised:
        sl.open(segment_path)
    assert raised.value.path == str(segment_path)
    limits = sl.open(segment_path, trust_any_owner=True)["set"]
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).check())"
    there = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(limits), capture_output=True, check=True)
    assert b"admitted" in there.stdout


@pytest.mark.parametrize("known", [3, 4])
def test_a_pickle_of_a_worker_that_knew_less_of_the_manner_is_read(segment_path, known):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]), strict=False)
    reopen, (path, *manner) = segment.__reduce__()
    former = (path, *manner[:known])
    assert len(manner) == 5
    assert reopen(*former) is segment
    sl.remove(segment_path, force=True)
    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    again = reopen(*former)
    assert again is not segment
    assert not again.strict
    assert again["set"].check()


def test_a_verdict_of_a_worker_that_knew_neither_tiers_nor_scopes_is_of_the_defaults(open_set):
    (verdict,) = open_set(sl.Calls("c", 5, 3600)).peek().values()
    made, fields = verdict.__reduce__()
    assert fields[-2:] == ("default", "key")
    assert made(*fields[:-2]) == verdict


def test_segments_can_be_made_without_open_and_derived_from(segment_path):
    class Own(sl.Segment):
        pass

    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    for made in [sl.Segment(segment_path), Own(segment_path)]:
        assert made["set"].check()
        assert pickle.loads(pickle.dumps(made))["set"].check()


def test_errors_keep_what_they_say_when_they_are_copied(segment_path):
    with pytest.raises(FileNotFoundError) as raised:
        sl.open(segment_path)
    for copied in [raised.value, pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)]:
        assert (copied.errno, copied.path) == (errno.ENOENT, str(segment_path))


def test_metadata_is_kept_as_it_is(segment_path):
    metadata = {"lease": "5", "window": "soon", "name": "x"}
    assert (
        sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)], metadata=metadata))["set"].metadata
        == metadata
    )


class Float64(float):
    def __repr__(self):
        return "np.float64(0.5)"


def test_numbers_of_other_types_are_the_numbers_that_they_are(segment_path):
    limit = sl.Rate("c", Float64(1.5), Float64(0.5), unit="0.5")
    declared = sl.open(segment_path, sl.LimitSet("set", [limit])).declaration()["set"][0]["limit"][0]
    assert (declared["capacity"], declared["window"]) == ("1.5", "500ms")


@pytest.mark.parametrize("window", [float("nan"), float("inf"), -1, True])
def test_what_is_no_span_of_time_cannot_be_declared(segment_path, window):
    with pytest.raises((sl.DeclarationError, TypeError)):
        sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, window)]))


def test_the_console_script_leaves_signals_to_the_command_as_it_found_them(segment_path):
    sl.open(segment_path, sl.LimitSet("set", [sl.Concurrency("c", 1)]))
    program = Path(sys.executable).with_name("limitctl")
    command = f"{program} exec {segment_path} set -- grep SigIgn /proc/self/status"
    for trap, ignored in [("", 0), ("trap '' INT; ", 1 << (signal.SIGINT - 1))]:
        shown = subprocess.run(
            ["sh", "-c", trap + command],
            capture_output=True,
            text=True,
            check=True,
            # The tests themselves may have been started with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        here = int(shown.stdout.split()[1], 16)
        assert here & (1 << (signal.SIGINT - 1)) == ignored
        assert not here & (1 << (signal.SIGXFSZ - 1) | 1 << (signal.SIGPIPE - 1))


def test_what_is_bound_to_this_process_does_not_pickle(segment_path):
    limits = sl.open(segment_path, sl.LimitSet("set", [sl.Concurrency("c", 1)]))["set"]
    permit = limits.try_acquire()
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(permit)


def test_the_console_script_is_limitctl(segment_path):
    sl.open(segment_path, sl.LimitSet("set", [sl.Calls("c", 5, 3600)]))
    program = Path(sys.executable).with_name("limitctl")
    shown = subprocess.run([program, "inspect", segment_path], capture_output=True, text=True, check=True)
    assert "set" in shown.stdout
    wrong = subprocess.run([program, "inspct"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 64
    assert "inspect" in wrong.stderr


def test_the_console_script_runs_a_command_under_limits(segment_path):
    segment = sl.open(segment_path, sl.LimitSet("set", [sl.Concurrency("c", 1)]))
    program = Path(sys.executable).with_name("limitctl")
    command = [program, "exec", segment_path, "set", "--timeout", "0", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, check=False).returncode == 7
    with segment["set"].try_acquire():
        assert subprocess.run(command, check=False, capture_output=True).returncode == 75


def test_a_snapshot_states_the_bound_of_each_limit(segment_path):
    calls = sl.Calls("calls", 10, "2s", algorithm="gcra")
    segment = sl.open(segment_path, sl.LimitSet("set", [calls, sl.Concurrency("in_flight", 2)]))
    limits = segment.snapshot()["sets"][0]["limits"]
    assert [limit["bound"] for limit in limits] == [calls.bound, None] == ["at most 19 in any 2s", None]


def test_half_a_call_per_second_is_one_in_two(shmlimit_segment, shmlimit_clock):
    slow = sl.Calls("calls", 1, algorithm="leaky_bucket", rate=0.5, interval=1)
    limits = shmlimit_segment(sl.LimitSet("set", [slow]))["set"]
    assert slow.bound == "at most 1 in any 2s"
    assert limits.check()
    shmlimit_clock.advance(1.999)
    assert not limits.check()
    shmlimit_clock.advance(0.001)
    assert limits.check()


def test_a_limit_without_a_capacity_says_so(segment_path):
    with pytest.raises(sl.DeclarationError, match="missing field `capacity`"):
        sl.open(segment_path, sl.LimitSet("set", [sl.Calls("calls", window="1s")]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_in_a_directory_of_the_group_names_the_option_that_trusts_it(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    path = shared / "api.limits"
    sl.open(path, sl.LimitSet("set", [sl.Calls("calls", 9, "1h")]), mode=0o660).close()
    os.chown(path, 12345, 12345)
    os.chown(shared, 0, 12345)
    shared.chmod(0o2770)
    with pytest.raises(sl.PermissionDenied, match=r"chmod 2750.*trust_any_owner"):
        sl.open(path)
    assert "set" in sl.open(path, trust_any_owner=True)
    shared.chmod(0o2750)
    assert "set" in sl.open(path)


def test_credit_that_is_declared_is_drawn_in_batches(open_set):
    limits = open_set(sl.Calls("calls", 100, "1000h", algorithm="token_bucket", credit={"batch": 10}))
    assert sum(bool(limits.check()) for _ in range(200)) == 100


def test_a_segment_that_is_gone_is_created_as_its_checkpoint_has_it(segment_path, tmp_path):
    kept = tmp_path / "kept"
    config = {
        "segment": {"checkpoint": {"path": str(kept), "every": "1h"}},
        "set": [{"name": "set", "limit": [{"name": "c", "kind": "calls", "capacity": 2, "window": "100d"}]}],
    }
    with sl.open(segment_path, config) as segment:
        assert segment["set"].check()
        assert segment.checkpoint(kept)
    os.unlink(segment_path)
    with sl.open(segment_path, config) as segment:
        assert segment["set"].check()
        assert not segment["set"].check()
        file = tmp_path / "text"
        file.write_text("something else")
        with pytest.raises(sl.InvalidSegment, match="not a checkpoint"):
            segment.checkpoint(file)
