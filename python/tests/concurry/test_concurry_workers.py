"""Concurry's workers take these limits in every mode, and each worker of a pool starts at its own member."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from concurry import temp_config
from conftest import ray_on_loopback

from shmlimit import concurry as ours
from shmlimit.concurry import (
    BaseLimitSet,
    CallLimit,
    InMemorySharedLimitSet,
    LimitPool,
    LimitSet,
    MultiprocessSharedLimitSet,
    NoOpLimitSet,
    RaySharedLimitSet,
    ShmLimitSet,
    Worker,
)

pytestmark = [
    # Concurry forks while its worker threads run, and passes its own settings around.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pydantic_settings.sources.utils.IncompleteFieldDefinitionWarning"),
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
]

MODES = ["sync", "thread", "asyncio", "process"]
POOL_MODES = ["thread", "process"]

DEADLINE = 300.0
"""The seconds that a worker is given. On a busy machine, one of Ray takes half a minute to start."""


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Gives worker processes as long to start as to answer: half a minute is too short on a busy machine."""
    with temp_config(process_worker_result_queue_timeout=DEADLINE):
        yield


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_on_loopback(Path(__file__).parent) as ray:
        yield ray


class Counter(Worker):  # type: ignore[misc]
    """Counts what its limits admit."""

    def admitted_of(self, attempts: int) -> int:
        return sum(self.limits.try_acquire().successful for _ in range(attempts))

    async def awaited(self) -> bool:
        async with await self.limits.async_acquire(timeout=60) as acquisition:
            return bool(acquisition.successful)

    def region(self) -> Any:
        return self.limits.try_acquire().config["region"]


def calls(capacity: int = 5) -> list[Any]:
    return [CallLimit(window="day", capacity=capacity)]


def regions(count: int, mode: str) -> list[Any]:
    return [LimitSet(calls(), shared=True, mode=mode, config={"region": number}) for number in range(count)]


def admitted_by_two_workers(limits: Any, mode: str) -> list[int]:
    workers = [Counter.options(mode=mode, limits=limits).init() for _ in range(2)]
    admitted = [worker.admitted_of(10).result(timeout=DEADLINE) for worker in workers]
    for worker in workers:
        worker.stop()
    return admitted


def regions_of_workers(limits: Any, mode: str, count: int) -> list[int]:
    """The members that `count` workers start with."""
    pool = Counter.options(mode=mode, max_workers=count, limits=limits, load_balancing="rr").init()
    chosen = [future.result(timeout=DEADLINE) for future in [pool.region() for _ in range(count)]]
    pool.stop()
    return sorted(chosen)


@pytest.mark.parametrize("mode", MODES)
def test_workers_share_a_set_whatever_their_mode(mode: str) -> None:
    assert admitted_by_two_workers(LimitSet(calls(), shared=True, mode="thread"), mode) == [5, 0]
    assert admitted_by_two_workers([LimitSet(calls(), shared=True, mode="process")], mode) == [5, 0]
    assert admitted_by_two_workers(LimitPool(limit_sets=regions(2, "process")), mode) == [10, 0]


def test_workers_of_ray_share_them_too(ray: Any) -> None:
    assert admitted_by_two_workers(LimitSet(calls(), shared=True, mode="ray"), "ray") == [5, 0]
    assert regions_of_workers(LimitPool(limit_sets=regions(3, "ray")), "ray", 3) == [0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_each_worker_has_limits_of_its_own_where_they_are_not_shared(mode: str) -> None:
    assert admitted_by_two_workers(calls(), mode) == [5, 5]
    with pytest.warns(UserWarning, match="Passing non-shared LimitSet"):
        assert admitted_by_two_workers(LimitSet(calls()), mode) == [5, 5]


def test_a_coroutine_of_a_worker_waits_for_its_limits() -> None:
    worker = Counter.options(mode="asyncio", limits=LimitSet(calls(), shared=True, mode="asyncio")).init()
    assert worker.awaited().result(timeout=DEADLINE)
    worker.stop()


@pytest.mark.parametrize("mode", POOL_MODES)
def test_each_worker_of_a_pool_starts_at_its_own_member(mode: str) -> None:
    assert regions_of_workers(LimitPool(limit_sets=regions(3, mode)), mode, 3) == [0, 1, 2]
    assert regions_of_workers(regions(3, mode), mode, 3) == [0, 1, 2]
    assert regions_of_workers(LimitPool(limit_sets=regions(3, mode), worker_index=2), mode, 2) == [0, 2]


@pytest.mark.parametrize("mode", POOL_MODES)
def test_the_workers_of_a_pool_share_what_is_declared_for_them(mode: str) -> None:
    pool = Counter.options(mode=mode, max_workers=3, limits=calls()).init()
    assert sum(future.result(timeout=DEADLINE) for future in [pool.admitted_of(10) for _ in range(3)]) == 5
    pool.stop()
    for private in (LimitSet(calls()), [LimitSet(calls())]):
        with pytest.raises(ValueError, match="shared"):
            Counter.options(mode=mode, max_workers=3, limits=private).init()


def test_what_is_not_of_this_package_goes_the_way_it_went() -> None:
    import concurry

    theirs = concurry.LimitSet(limits=[concurry.CallLimit(window=60, capacity=5)], shared=True, mode="thread")
    assert admitted_by_two_workers(theirs, "thread") == [5, 0]
    assert admitted_by_two_workers(None, "thread") == [10, 10]


def test_concurry_takes_the_sets_for_its_own() -> None:
    from concurry.core.limit.limit_set import BaseLimitSet as Theirs

    for made in (LimitSet(calls()), NoOpLimitSet()):
        assert isinstance(made, Theirs)
        assert isinstance(made, BaseLimitSet)
    assert not isinstance(LimitPool(limit_sets=regions(1, "thread")), Theirs)


def test_the_order_of_imports_does_not_matter() -> None:
    script = """
from shmlimit.concurry import CallLimit, LimitSet
limits = LimitSet([CallLimit(window="day", capacity=5)], shared=True, mode="thread")
{imported}

class Counter(Worker):
    def admitted(self):
        return self.limits.try_acquire().successful

worker = Counter.options(mode="thread", limits=limits).init()
print(sum(worker.admitted().result(timeout={timeout}) for _ in range(10)))
worker.stop()
"""
    for imported in (
        "from shmlimit.concurry import Worker",
        "from concurry import Worker; from shmlimit.concurry import connect_workers; connect_workers()",
        "from concurry import Worker; limits = LimitSet(limits.limits, shared=True, mode='thread')",
    ):
        command = [sys.executable, "-c", script.format(imported=imported, timeout=DEADLINE)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE, check=True)
        assert run.stdout == "5\n", run.stderr


def test_all_of_concurry_can_be_imported_from_here() -> None:
    import concurry

    assert ours.Executor is concurry.Executor
    with pytest.raises(AttributeError):
        _ = ours.nonesuch


def test_each_mode_has_the_class_that_it_has_there() -> None:
    classes = {
        "sync": InMemorySharedLimitSet,
        "thread": InMemorySharedLimitSet,
        "asyncio": InMemorySharedLimitSet,
        "process": MultiprocessSharedLimitSet,
        "ray": RaySharedLimitSet,
    }
    for mode, expected in classes.items():
        made = LimitSet(calls(), shared=True, mode=mode)
        assert type(made) is expected
        assert issubclass(expected, ShmLimitSet)
        assert type(pickle.loads(pickle.dumps(made))) is expected
        assert type(LimitSet([], shared=True, mode=mode)) is NoOpLimitSet
    assert MultiprocessSharedLimitSet(calls()).mode == "Processes"
    assert RaySharedLimitSet(calls()).shared
    assert not InMemorySharedLimitSet(calls(), shared=False).shared


def test_a_pool_takes_any_set_that_can_do_what_sets_can() -> None:
    class Recording:
        """A set of someone else's, which records what it was asked for."""

        def __init__(self, inner: ShmLimitSet) -> None:
            self.inner = inner
            self.asked: list[object] = []

        def acquire(self, requested: Any = None, timeout: float | None = None) -> Any:
            self.asked.append(requested)
            return self.inner.acquire(requested, timeout)

        async def async_acquire(self, requested: Any = None, timeout: float | None = None) -> Any:
            return await self.inner.async_acquire(requested, timeout)

        def try_acquire(self, requested: Any = None) -> Any:
            return self.inner.try_acquire(requested)

        def release_limit_set_acquisition(self, acquisition: Any) -> None:
            self.inner.release_limit_set_acquisition(acquisition)

        def get_stats(self) -> dict[str, Any]:
            return self.inner.get_stats()

    recording = Recording(LimitSet(calls()))
    pool = LimitPool(limit_sets=[recording])
    pool.acquire({"call_count": 1}, timeout=60)
    assert recording.asked == [{"call_count": 1}]
    assert pool.get_stats()["limit_sets"][0]["call_count"]["current_requests"] == 1


class Tagged(ShmLimitSet):
    """A subclass with attributes of its own."""

    def __init__(self, tag: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tag = tag
        self._secret = tag.upper()


class TaggedPool(LimitPool):
    """The same for a pool, whose fields cannot be assigned."""

    def __init__(self, tag: str, **options: Any) -> None:
        super().__init__(**options)
        vars(self)["_tag"] = tag


def test_subclasses_keep_their_attributes_in_pickles() -> None:
    tagged = Tagged("mine", calls(), shared=True)
    copy = pickle.loads(pickle.dumps(tagged))
    assert (copy.tag, copy._secret) == ("mine", "MINE")
    original = TaggedPool("mine", limit_sets=regions(2, "thread"))
    pool = pickle.loads(pickle.dumps(original))
    assert pool._tag == pool.at_worker(1)._tag == "mine"
    assert pool.at_worker(1).worker_index == 1


def make_and_report(path: Any) -> None:
    limits = LimitSet(calls(), shared=True, mode="process")
    # Kept until the process ends.
    globals()["_kept"] = limits
    path.put(limits.path)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_set_that_is_made_in_a_child_leaves_no_file_behind(context: str) -> None:
    start = multiprocessing.get_context(context)
    paths = start.Queue()
    child = start.Process(target=make_and_report, args=(paths,))
    child.start()
    path = paths.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert not Path(path).exists()


def test_a_forked_child_that_ends_leaves_the_file_of_its_parent() -> None:
    limits = LimitSet(calls(), shared=True, mode="process")
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(60)
    assert limits.path is not None
    assert Path(limits.path).exists()
    path = limits.path
    del limits
    assert not Path(path).exists()


def test_too_many_limits_and_too_long_keys_say_which_bound_they_met() -> None:
    many = [ours.ResourceLimit(key=f"{number}", capacity=1) for number in range(17)]
    with pytest.raises(ValueError, match="limits: 17 is out of range: choose from 1 to 16"):
        LimitSet(many)
    with pytest.raises(ValueError, match="is not a name: write 1 to 64 bytes"):
        LimitSet([ours.ResourceLimit(key="k" * 65, capacity=1)])
