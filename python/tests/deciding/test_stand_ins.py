"""Fixtures for sets that were opened before the test, as modules open them on import."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shmlimit as sl
from shmlimit import _native
from shmlimit._stand_ins import _asking
from shmlimit.wsgi import LimitMiddleware

ONE = [sl.Calls("requests", 1, "1h", algorithm="fixed_window")]


@pytest.fixture(scope="module")
def opened() -> Iterator[sl.Segment]:
    """A segment that is opened before the fixtures of a test, with one set used up."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        sets = [
            sl.LimitSet("api", ONE),
            sl.LimitSet("keyed", ONE, keyed=sl.Keyed(100, overrides=True)),
            sl.LimitSet("places", [sl.Concurrency("places", 1)], labels=True),
        ]
        segment = sl.open(Path(directory) / "opened.limits", sets)
        assert segment["api"].check()
        yield segment


@pytest.fixture(scope="module", autouse=True)
def handles(opened: sl.Segment) -> dict[str, Any]:
    """Handles that are made before the fixtures of a test, too."""
    app = LimitMiddleware(lambda environ, start: start("200 OK", []) or [], opened["api"])
    return {
        "set": opened["api"],
        "labelled": opened["api"].labelled("import"),
        "pool": sl.Pool([opened["api"]]),
        "middleware": app,
    }


def ask(handle: Any) -> bool:
    if isinstance(handle, LimitMiddleware):
        said: list[str] = []
        list(handle({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda status, _fields: said.append(status)))
        return said == ["200 OK"]
    return bool(handle.try_acquire())


@pytest.mark.parametrize("name", ["set", "labelled", "pool", "middleware"])
@pytest.mark.parametrize("turn", [1, 2])
def test_what_was_opened_on_import_follows_the_clock(
    handles: dict[str, Any], name: str, turn: int, shmlimit_clock: sl.VirtualClock
) -> None:
    assert [ask(handles[name]) for _ in range(2)] == [True, False], turn
    shmlimit_clock.advance(3600)
    assert [ask(handles[name]) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("name", ["set", "labelled", "pool", "middleware"])
@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.usefixtures("shmlimit_fresh")
def test_no_test_finds_what_another_has_counted(handles: dict[str, Any], name: str, turn: int) -> None:
    assert [ask(handles[name]) for _ in range(2)] == [True, False], turn


def test_without_the_fixtures_it_is_what_it_was(handles: dict[str, Any]) -> None:
    for handle in handles.values():
        assert not ask(handle)
    for owner in (sl.SetHandle, sl.Pool):
        assert not {*_asking(owner)} & {*vars(owner)}


@pytest.mark.usefixtures("shmlimit_fresh")
def test_one_file_has_one_stand_in_in_all_threads_and_forked_children(opened: sl.Segment) -> None:
    again = sl.open(opened.path)
    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(lambda _: bool(again["api"].check()), range(20)), bool(opened["api"].check())]
    assert sum(answers) == 1
    assert opened["keyed"].check(key="a")
    child = os.fork()
    if child == 0:
        os._exit(int(bool(opened["keyed"].check(key="a"))))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("shmlimit_fresh")
def test_tasks_wait_for_stand_ins(opened: sl.Segment) -> None:
    async def take() -> None:
        async with opened["places"].acquire_async(timeout=60):
            assert not opened["places"].try_acquire()

    asyncio.run(take())
    assert opened["places"].try_acquire()


@pytest.mark.usefixtures("shmlimit_fresh")
def test_a_set_that_a_directory_gets_later_has_a_stand_in_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = f"{tmp_path_factory.mktemp('sets')}/app.limits.d/"
    sets = [sl.LimitSet("api", ONE), sl.LimitSet("mail", ONE)]
    segment = sl.open(directory, sets[:1])
    assert [bool(segment["api"].check()) for _ in range(2)] == [True, False]
    sl.open(directory, sets)
    assert [bool(segment["mail"].check()) for _ in range(2)] == [True, False]
    assert not segment["api"].check()


CHANGES: dict[str, Callable[[sl.SetHandle], object]] = {
    "assign": lambda limits: limits.assign("a", "default"),
    "override": lambda limits: limits.override("a", "requests", 5),
    "throttle": lambda limits: limits.throttle(60, key="a"),
    "respect": lambda limits: limits.respect({"Retry-After": "60"}, status=429, key="a"),
    "check": lambda limits: limits.check(key="a"),
    "check_many": lambda limits: limits.check_many(["a"]),
    "try_acquire": lambda limits: limits.try_acquire(key="a"),
    "acquire": lambda limits: limits.acquire(key="a"),
    "reserve": lambda limits: limits.reserve(key="a", max_delay=0),
    "_begin": lambda limits: asyncio.run(_awaited(limits)),
    "reset": lambda limits: limits.reset(counters=True),
}
LOOKS = {"_cold_wait", "debit", "forecast", "overrides", "peek", "table_usage", "tier"}


async def _awaited(limits: sl.SetHandle) -> None:
    await limits.acquire_async(key="a")


def test_every_method_of_a_set_asks_its_stand_in() -> None:
    methods = {name for name, each in vars(_native.SetHandle).items() if callable(each) and not name.startswith("__")}
    assert methods - {"_has_successor"} == {*CHANGES, *LOOKS} == {*_asking(sl.SetHandle)}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("shmlimit_fresh")
def test_nothing_that_a_test_changes_reaches_the_set_itself(opened: sl.Segment, name: str) -> None:
    assert opened.key_snapshots("keyed") == []
    CHANGES[name](opened["keyed"])
    assert opened.key_snapshots("keyed") == []
