"""Releases with different lists of sets, under load, where each set has a file of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import shmlimit as sl

from .conftest import Serve, Server, wait_until

CAPACITY = 300
WORKERS = 4


def _calls(name: str, capacity: int) -> sl.LimitSet:
    return sl.LimitSet(name, [sl.Calls("requests", capacity, "1h", algorithm="sliding_window")])


class _Load:
    """Clients that ask without a pause."""

    def __init__(self, server: Server) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(server,)) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self, server: Server) -> None:
        try:
            while not self._stop.is_set():
                self.answers[server.get("/chat").status] += 1
        except Exception as error:
            self.failures.append(repr(error))

    def stop(self) -> None:
        """Waits until the last answer has come."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _release(directory: Path, number: int, *sets: sl.LimitSet) -> None:
    """What a deployment puts in place before it tells the server."""
    texts = [each.to_toml().split("\n\n", 1)[1] for each in sets]
    (directory / "limits.toml").write_text(f"[segment]\nversion = {number}\n\n" + "\n\n".join(texts))
    (directory / "release").write_text(str(number))


def _deploy(server: Server, directory: Path, number: int, *sets: sl.LimitSet) -> None:
    _release(directory, number, *sets)
    server.process.send_signal(signal.SIGHUP)
    seen: Counter[bytes] = Counter()

    def is_everywhere() -> bool:
        latest = {server.get("/ready").body for _ in range(4 * WORKERS)}
        seen.update(latest)
        return all(answer.startswith(f"{number} ".encode()) for answer in latest)

    wait_until(is_everywhere, f"release {number} answers")


def _limitctl(*arguments: str) -> str:
    program = Path(sys.executable).with_name("limitctl")
    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_sets_are_added_changed_and_removed_by_hup_under_load_and_nothing_is_lost(
    serve: Serve, directory: Path
) -> None:
    chat = _calls("chat", CAPACITY)
    _release(directory, 1, chat, _calls("mail", 5))
    server = serve("gunicorn", "redeployed:application", workers=WORKERS)
    path = directory / "app.limits.d"
    load = _Load(server)
    try:
        assert server.get("/mail").status == 200
        # A set is added, another changed.
        _deploy(server, directory, 2, _calls("search", 2), chat, _calls("mail", 3))
        assert [server.get("/search").status for _ in range(3)] == [200, 200, 429]
        assert [server.get("/mail").status for _ in range(3)] == [200, 200, 429], "one of three was used before"
        # One leaves the list: its file stays, is named, and is removed by hand.
        _deploy(server, directory, 3, _calls("search", 2), chat)
        wait_until(lambda: "limitctl remove" in _limitctl("list", str(path)), "no process has it open")
        assert f"limitctl remove {path}/mail" in _limitctl("list", str(path))
        _limitctl("remove", str(path / "mail"))
        assert sorted(each.name for each in path.iterdir()) == ["chat", "search"]
        wait_until(lambda: load.answers[429] > 0, "the limit is reached")
    finally:
        load.stop()
    assert load.failures == []
    assert set(load.answers) == {200, 429}
    assert load.answers[200] == CAPACITY, "over all releases"
    with sl.open(path) as segment:
        [counts] = [each["counts"] for each in segment.snapshot()["sets"] if each["name"] == "chat"]
        assert counts["admitted"] == CAPACITY


def test_a_release_with_another_list_is_told_the_way_if_the_segment_is_a_single_file(directory: Path) -> None:
    path = directory / "app.limits"
    with sl.open(path, _calls("chat", CAPACITY)):
        with pytest.raises(sl.ConfigMismatch) as raised:
            sl.open(path, [_calls("chat", CAPACITY), _calls("mail", 5)])
        assert f"{path}.d/" in raised.value.remedy
        with sl.open(f"{path}.d/", [_calls("chat", CAPACITY), _calls("mail", 5)]) as moved:
            assert list(moved) == ["chat", "mail"]
