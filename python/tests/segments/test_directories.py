"""Segments whose path is a directory, with a file for each set."""

import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import pytest
from conftest import limitctl

import shmlimit as sl


def calls(name, capacity, **fields):
    return sl.LimitSet(name, [sl.Calls("calls", capacity, "1h")], **fields)


@pytest.fixture
def path(segment_path):
    """Where a directory is to be created; pathlib drops trailing slashes."""
    path = Path(f"{segment_path}.d")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def used(limits):
    return sum(bool(limits.check()) for _ in range(20))


def test_sets_are_added_while_others_go_on(path):
    former = sl.open(path, [calls("chat", 3)])
    chat = former["chat"]
    assert chat.check()
    following = sl.open(f"{path}/", [calls("mail", 5), calls("chat", 3)])
    assert list(following) == ["mail", "chat"]
    assert following.mismatches == []
    assert following["chat"].check()
    assert used(chat) == 1
    assert sorted(os.listdir(path)) == ["chat", "mail"]
    assert list(former) == ["chat"]


def test_a_set_that_is_there_is_opened_when_it_is_asked_for(path):
    former = sl.open(path, calls("chat", 3))
    assert "mail" not in former
    with pytest.raises(sl.UnknownName, match="chat"):
        former["mail"]
    following = sl.open(path, [calls("chat", 3), calls("mail", 2)])
    assert "mail" in former
    assert former["mail"].check()
    assert used(following["mail"]) == 1
    assert former.get("none") is None
    assert list(former) == ["chat", "mail"]


def test_a_changed_set_changes_alone(path):
    sl.open(path, [calls("chat", 3), calls("mail", 5)])
    again = sl.open(path, [calls("chat", 3), calls("mail", 2)])
    assert [each["set"] for each in again.mismatches] == ["mail"]
    with pytest.raises(sl.ConfigMismatch) as raised:
        sl.open(path, [calls("chat", 3), calls("mail", 2, keyed=10)])
    assert raised.value.path == str(path / "mail")
    assert f"limitctl remove {path}/mail" in raised.value.remedy


def test_apply_adds_sets_and_leaves_others_alone(path):
    segment = sl.open(path, [calls("chat", 3), calls("mail", 5)])
    changes = segment.apply([calls("chat", 4), calls("new", 1)])
    assert any("declared 4" in each for each in changes)
    assert any(each.startswith('set "new"') for each in changes)
    assert [each["name"] for each in segment.declaration()["set"]] == ["chat", "mail", "new"]
    with pytest.raises(sl.ConfigMismatch, match="keyed"):
        segment.apply([calls("other", 1), calls("mail", 5, keyed=10)])
    assert "other" not in segment


def test_snapshots_and_metrics_are_of_all_sets(path):
    segment = sl.open(path, [calls("chat", 3), calls("tenants", 2, keyed=10)])
    assert segment["tenants"].check(key="acme")
    snapshot = segment.snapshot()
    assert snapshot["path"] == str(path)
    assert [each["name"] for each in snapshot["sets"]] == ["chat", "tenants"]
    assert [each["pid"] for each in snapshot["participants"]] == [os.getpid()]
    [key] = segment.key_snapshots("tenants")
    assert key["admitted"] == 1
    assert segment.key_snapshot("tenants", "acme")["admitted"] == 1
    assert [each["set"] for each in segment.recover()["sets"]] == ["chat", "tenants"]


def test_handles_pickle_and_find_a_set_that_was_made_anew(path):
    segment = sl.open(path, [calls("chat", 3), calls("mail", 2)])
    mail = pickle.dumps(segment["mail"])
    assert pickle.loads(mail).check()
    assert pickle.loads(pickle.dumps(segment)) is segment
    sl.remove(path / "mail", force=True)
    sl.open(path, [calls("mail", 2)])
    assert used(pickle.loads(mail)) == 2, "of the new file"


def use_in_child(handle, name):
    assert handle.check()
    assert handle.name == name


def test_children_share_each_set(path):
    segment = sl.open(path, [calls("chat", 3), calls("a/b", 3)])
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        for name in segment:
            child = context.Process(target=use_in_child, args=(segment[name], name))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    assert [used(limits) for limits in segment.values()] == [1, 1]
    assert sorted(os.listdir(path)) == ["a%2Fb", "chat"]


def test_a_set_has_a_successor_of_its_own(path):
    segment = sl.open(path, [calls("chat", 3), calls("mail", 2)])
    mail = segment["mail"]
    assert mail.check()
    assert segment["chat"].check()
    sl.remove(path / "mail", force=True)
    with pytest.raises(sl.Removed):
        mail.check()
    assert segment.removed
    sl.open(path, [calls("mail", 2)])
    successor = None
    while successor is None:
        successor = mail.successor()
    assert used(successor) == 2
    assert used(segment.successor()["chat"]) == 2


def test_a_declaration_may_name_the_directory(path, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(f'[segment]\npath = "{path}/"\n' + calls("chat", 3).to_toml().split("\n\n", 1)[1])
    assert list(sl.open(config=file)) == ["chat"]
    assert os.listdir(path) == ["chat"]


def test_what_is_no_directory_or_needs_a_file_says_so(path, segment_path):
    sl.open(segment_path, calls("chat", 3))
    with pytest.raises(sl.SegmentError, match="names a directory"):
        sl.open(f"{segment_path}/", calls("chat", 3))
    sl.open(path, calls("chat", 3))
    os.rename(path / "chat", path / "other")
    with pytest.raises(sl.InvalidSegment, match="rename it"):
        sl.open(path)


def test_the_verbs_of_limitctl_take_it(path):
    segment = sl.open(path, [calls("chat", 3), calls("mail", 2)])
    assert limitctl("inspect", str(path)).returncode == 0
    done = limitctl("edit", str(path), "mail", "calls", "capacity=7")
    assert done.returncode == 0, done.stderr
    assert [limits["capacity"] for each in segment.declaration()["set"] for limits in each["limit"]] == [3, 7]
    assert limitctl("remove", f"{path}/").returncode == 1
    segment.close()
    assert limitctl("remove", f"{path}/").returncode == 0
    assert not path.exists()
