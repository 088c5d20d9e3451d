"""The storage for `limits`, compared with the one that comes with it."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from pathlib import Path
from typing import Any

import limits.aio.strategies
import limits.strategies
import pytest
from conftest import limitctl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import RateLimitItem, RateLimitItemPerHour, parse
from limits.aio.strategies import STRATEGIES as ASYNC_STRATEGIES
from limits.errors import ConfigurationError, StorageError
from limits.storage import MemoryStorage, storage_from_string
from limits.storage.base import TimestampedSlidingWindow
from limits.strategies import STRATEGIES, FixedWindowRateLimiter, RateLimiter

import shmlimit as sl
import shmlimit.limits_storage
from shmlimit.limits_storage import AsyncShmStorage, ShmStorage

from ..conftest import wait_until

NAMES = sorted(STRATEGIES)

# Windows so long that none turns while a test runs.
ITEMS = [parse(text) for text in ["1/month", "5 per month", "3 per 2 month", "40/year", "7 per 3 year"]]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["hit", "hit", "hit", "test", "stats", "clear"]),
        st.sampled_from(ITEMS),
        st.sampled_from([(), ("ann",), ("bob", "/search")]),
        st.integers(1, 6),
    ),
    max_size=40,
)

HYPOTHESIS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _skip_where_limits_knows_no_former_cell(name: str) -> None:
    """Before a window has passed since 1970, the memory storage keeps the previous and current cell under one key."""
    if name == "sliding-window-counter" and time.time() < max(item.get_expiry() for item in ITEMS):
        pytest.skip("limits counts a sliding window's first cell since 1970 twice")


@pytest.mark.parametrize("name", NAMES)
def test_decides_as_the_memory_storage_does(directory: Path, memory: MemoryStorage, name: str) -> None:
    _skip_where_limits_knows_no_former_cell(name)
    storage = ShmStorage(f"shm://{directory}/limits?entries=64&max_keys=100")

    @HYPOTHESIS
    @given(actions=ACTIONS)
    def check(actions: list[Any]) -> None:
        storage.reset()
        memory.reset()
        ours, theirs = STRATEGIES[name](storage), STRATEGIES[name](memory)
        for action, item, who, cost in actions:
            if action == "hit":
                assert ours.hit(item, *who, cost=cost) == theirs.hit(item, *who, cost=cost)
            elif action == "test":
                assert ours.test(item, *who, cost=cost) == theirs.test(item, *who, cost=cost)
            elif action == "clear":
                ours.clear(item, *who)
                theirs.clear(item, *who)
            else:
                mine, other = ours.get_window_stats(item, *who), theirs.get_window_stats(item, *who)
                assert mine.remaining == other.remaining
                # Where a weighted sum is about to fall below a whole number, it does so a millionth late.
                near = pytest.approx(other.reset_time - time.time(), abs=1.0 + 2e-6 * item.get_expiry())
                assert mine.reset_time - time.time() == near

    check()


@pytest.mark.parametrize("name", NAMES)
def test_decides_asynchronously_as_the_asynchronous_memory_storage_does(directory: Path, name: str) -> None:
    _skip_where_limits_knows_no_former_cell(name)
    storage = AsyncShmStorage(f"async+shm://{directory}/limits?entries=64&max_keys=100")

    async def compare(actions: list[Any]) -> None:
        memory = limits.aio.storage.MemoryStorage()
        await storage.reset()
        ours, theirs = ASYNC_STRATEGIES[name](storage), ASYNC_STRATEGIES[name](memory)
        for action, item, who, cost in actions:
            if action == "hit":
                assert await ours.hit(item, *who, cost=cost) == await theirs.hit(item, *who, cost=cost)
            elif action == "test":
                assert await ours.test(item, *who, cost=cost) == await theirs.test(item, *who, cost=cost)
            elif action == "clear":
                await ours.clear(item, *who)
                await theirs.clear(item, *who)
            else:
                mine, other = await ours.get_window_stats(item, *who), await theirs.get_window_stats(item, *who)
                assert mine.remaining == other.remaining

    @HYPOTHESIS
    @given(actions=ACTIONS)
    def check(actions: list[Any]) -> None:
        asyncio.run(compare(actions))

    check()


@pytest.mark.parametrize("name", NAMES)
def test_windows_turn_when_those_of_the_memory_storage_do(directory: Path, memory: MemoryStorage, name: str) -> None:
    ours, theirs = STRATEGIES[name](ShmStorage(f"shm://{directory}/limits")), STRATEGIES[name](memory)
    # A late step may find that the window has turned in one and not in the other, and then proves nothing.
    admitted = next(filter(None, (_admitted_by_both(ours, theirs, f"person {turn}") for turn in range(200))))
    assert 4 < admitted < 30


def _admitted_by_both(ours: RateLimiter, theirs: RateLimiter, who: str) -> int | None:
    """Asks both at the same instants, none of them where a window ends; `None` if this process was held up."""
    item = parse("4 per second")
    assert ours.test(item, who)
    admitted = 0
    begin = float(int(time.time()) + 1) + 0.05
    for step in range(15):
        instant = begin + step * 0.3
        time.sleep(max(0.0, instant - time.time()))
        decisions = [(ours.hit(item, who, cost=cost), theirs.hit(item, who, cost=cost)) for cost in (1, 2)]
        remaining = [limiter.get_window_stats(item, who).remaining for limiter in (ours, theirs)]
        if time.time() > instant + 0.015:
            return None
        assert all(mine == other for mine, other in decisions), f"step {step}: {decisions}"
        assert remaining[0] == remaining[1], f"step {step}: {remaining}"
        admitted += sum(mine for mine, _ in decisions)
    return admitted


def test_sliding_windows_begin_at_multiples_of_their_length_since_the_epoch(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    assert isinstance(storage, TimestampedSlidingWindow)
    limiter, item = STRATEGIES["sliding-window-counter"](storage), RateLimitItemPerHour(3)
    before = time.time()
    assert limiter.hit(item, "ann")
    # With nothing left of the previous window, room comes when the current one ends.
    reset_time = limiter.get_window_stats(item, "ann").reset_time
    ends = {(int(instant) // 3600 + 1) * 3600 for instant in (before, time.time())}
    assert min(abs(reset_time - end) for end in ends) < 1


def test_fixed_windows_count_what_is_refused_and_expire_by_the_wall_clock(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    before = time.time()
    assert [storage.incr("anything", 60, amount) for amount in (1, 1, 500)] == [1, 2, 502]
    assert storage.get("anything") == 502
    assert before + 59 < storage.get_expiry("anything") <= time.time() + 60
    assert storage.get("another") == 0
    assert abs(storage.get_expiry("another") - time.time()) < 1
    storage.clear("anything")
    assert storage.get("anything") == 0


def test_a_moving_window_tells_when_its_oldest_request_came(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    before = time.time()
    assert storage.acquire_entry("ann", 3, 60, 2)
    after = time.time()
    assert storage.acquire_entry("ann", 3, 60)
    start, count = storage.get_moving_window("ann", 3, 60)
    assert count == 3
    assert before - 0.01 <= start <= after + 0.01


def test_more_requests_than_entries_are_refused_early_and_never_late(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits?entries=4")
    assert sum(storage.acquire_entry("ann", 100, 3600) for _ in range(300)) == 100


def test_reset_forgets_everything_and_says_how_many_keys_there_were(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    storage.incr("ann", 60)
    storage.incr("bob", 3600)
    storage.acquire_entry("ann", 1, 60)
    assert storage.reset() == 3
    assert storage.get("ann") == storage.get("bob") == 0
    assert storage.acquire_entry("ann", 1, 60)


def test_another_storage_of_the_same_directory_finds_what_was_counted(directory: Path) -> None:
    uri = f"shm://{directory}/limits"
    one, other = ShmStorage(uri), ShmStorage(uri)
    one.incr("ann", 60)
    assert other.get("ann") == 1
    other.clear("ann")
    assert one.get("ann") == 0
    item = RateLimitItemPerHour(3)
    one.acquire_sliding_window_entry(item.key_for("ann"), 3, 3600)
    assert other.get_sliding_window(item.key_for("ann"), 3600)[2] == 1
    one.acquire_sliding_window_entry("of another form", 3, 3600)
    assert other.get_sliding_window("of another form", 3600)[2] == 1


def test_asking_makes_no_file(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    for key in ["anything", "LIMITER/ann/5/1/minute", "LIMITER/ann/0/7/day"]:
        assert storage.get(key) == 0
        assert storage.get_sliding_window(key, 60) == (0, 0.0, 0, 60.0)
        storage.get_expiry(key)
        storage.clear(key)
        storage.clear_sliding_window(key, 60)
    assert storage.check()
    assert not (directory / "limits").exists()


def test_a_full_table_refuses_new_keys_and_forgets_no_old_one(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits?max_keys=4&when_full=refuse")
    limiter = FixedWindowRateLimiter(storage)
    item = RateLimitItemPerHour(1)
    admitted = [name for name in map(str, range(200)) if limiter.hit(item, name)]
    assert 4 <= len(admitted) < 200
    assert not any(limiter.hit(item, name) for name in admitted)


def test_a_full_table_evicts_the_oldest_key_where_that_is_declared(directory: Path) -> None:
    limiter = FixedWindowRateLimiter(ShmStorage(f"shm://{directory}/limits", max_keys="4", when_full="evict_oldest"))
    item = RateLimitItemPerHour(1)
    assert all(limiter.hit(item, name) for name in map(str, range(200)))


def test_workers_with_other_options_count_apart_instead_of_failing(directory: Path) -> None:
    before = ShmStorage(f"shm://{directory}/limits?max_keys=100")
    after = ShmStorage(f"shm://{directory}/limits?max_keys=200")
    assert before.incr("ann", 60) == after.incr("ann", 60) == 1
    assert before.incr("ann", 60) == 2


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("shm://", "three slashes"),
        ("shm://myapp.limits", "three slashes"),
        ("shm:///dev/shm/{}?max_kees=1", "max_kees"),
        ("shm:///dev/shm/{}?max_keys=many", "many"),
        ("shm:///dev/shm/{}?max_keys=0", "at least 1"),
        ("shm:///dev/shm/{}?when_full=panic", "evict_oldest"),
        ("shm:///dev/shm/{}?entries=0", "entries"),
    ],
)
def test_a_uri_that_cannot_be_is_refused_at_once(directory: Path, uri: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        storage_from_string(uri.format(directory.name))


def test_a_directory_in_which_anybody_writes_is_refused(directory: Path) -> None:
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="a directory of your own"):
        ShmStorage(f"shm://{directory}")


def test_a_retired_file_is_made_anew(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    storage.incr("ann", 60)
    for file in (directory / "limits").iterdir():
        sl.remove(file, force=True)
    assert storage.incr("ann", 60) == 1


def test_a_deleted_file_is_made_anew(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    assert storage.incr("ann", 60) == 1
    for file in (directory / "limits").iterdir():
        file.unlink()
    # Within a second: until then, the deleted file is counted in.
    wait_until(lambda: storage.incr("ann", 60) == 1, "the deletion is noticed")
    assert len(list((directory / "limits").iterdir())) == 1


@pytest.mark.parametrize("options", ["", "?max_keys=2000&when_full=evict_oldest", "?max_keys=50&when_full=refuse"])
def test_limits_are_sets_of_one_segment_and_those_out_of_use_are_named_and_removed(
    directory: Path, options: str
) -> None:
    uri = f"shm://{directory}/limits{options}"
    items = [parse(text) for text in ["5/minute", "1000000 per 12 month"]]

    def hit(storage: ShmStorage, item: RateLimitItem) -> None:
        assert all(STRATEGIES[name](storage).hit(item, "ann") for name in NAMES)
        assert storage.incr("of another form", 60)

    former = ShmStorage(uri)
    for item in items:
        hit(former, item)
    del former
    gc.collect()
    following = ShmStorage(uri)
    hit(following, items[0])
    files = {file.name for file in (directory / "limits").iterdir()}
    assert len(files) == 2 * len(NAMES) + 1
    with sl.open(directory / "limits") as segment:
        assert set(segment) == files
    listed = json.loads(limitctl("list", "--json", str(directory / "limits")).stdout)["segments"]
    stale = [Path(one) for each in listed for one in each.get("undeclared", ())]
    assert {file.name for file in stale} == {name for name in files if "1000000-per" in name}
    for file in stale:
        assert limitctl("remove", str(file)).returncode == 0
    hit(following, items[0])
    assert limitctl("doctor", str(directory / "limits")).returncode == 0


def test_errors_are_wrapped_where_that_is_asked_for_and_check_tells(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits", wrap_exceptions=True)
    assert storage.check()
    storage.incr("ann", 60)
    [file] = (directory / "limits").iterdir()
    file.unlink()
    file.write_bytes(b"something else")
    fresh = ShmStorage(f"shm://{directory}/limits", wrap_exceptions=True)
    assert not fresh.check()
    with pytest.raises(StorageError):
        fresh.incr("ann", 60)


def test_importing_the_module_makes_the_schemes_known(directory: Path) -> None:
    assert isinstance(storage_from_string(f"shm://{directory}/limits"), shmlimit.limits_storage.ShmStorage)
    assert isinstance(storage_from_string(f"async+shm://{directory}/limits"), shmlimit.limits_storage.AsyncShmStorage)
