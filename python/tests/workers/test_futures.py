"""LimitedExecutor over pools of threads and of processes."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pool_jobs
import pytest
from observing import DEADLINE, active, queued, snapshot_of, until

import shmlimit as sl
from shmlimit.futures import LimitedExecutor, current_permit

# Pools fork while threads of their own run; Python 3.12 and later warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

Pool = Callable[[int], Executor]


def process_pool(method: str) -> Pool:
    """Makes process pools with this start method."""
    return partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context(method))


every_pool = pytest.mark.parametrize(
    "pool",
    [
        pytest.param(ThreadPoolExecutor, id="threads"),
        *(pytest.param(process_pool(method), id=method) for method in ("fork", "spawn", "forkserver")),
    ],
)


@pytest.fixture
def segment(tmp_path: Path) -> sl.Segment:
    """Two places in one set; in the other, tokens of each tenant, which do not come back for a long time."""
    tokens = sl.Rate("tokens", 1000, "30d", algorithm="token_bucket")
    return pool_jobs.open_pools(tmp_path, sl.LimitSet("tenants", [tokens], keyed=10))


@every_pool
def test_two_of_four_workers_run_at_once(segment: sl.Segment, tmp_path: Path, pool: Pool) -> None:
    go = tmp_path / "go"
    with LimitedExecutor(pool(4), segment["places"]) as executor:
        futures = [executor.submit(pool_jobs.hold_until, go) for _ in range(8)]
        until(lambda: queued(segment, "places") == 2, "two workers in the queue")
        assert active(segment, "places") == 2
        go.touch()
        for future in futures:
            future.result(DEADLINE)
    assert snapshot_of(segment, "places")["counts"]["active_high_water"] == 2
    assert active(segment, "places") == 0


@every_pool
def test_maps_and_passes_keywords(segment: sl.Segment, pool: Pool) -> None:
    with LimitedExecutor(pool(2), segment["places"]) as executor:
        assert list(executor.map(pool_jobs.squared, range(20))) == [number**2 for number in range(20)]
        assert executor.submit(pool_jobs.squared, 2, exponent=5).result(DEADLINE) == 32
    assert snapshot_of(segment, "places")["counts"]["admitted"] == 21


@every_pool
def test_costs_and_key_come_from_the_arguments_and_the_call_settles(segment: sl.Segment, pool: Pool) -> None:
    def costs(used: int) -> dict[str, int]:
        return {"tokens": 2 * used}

    with LimitedExecutor(pool(2), segment["tenants"], costs, key=lambda used: f"tenant-{used}") as executor:
        assert executor.submit(pool_jobs.settle, 30).result(DEADLINE) == 30
        assert executor.submit(pool_jobs.settle, 50).result(DEADLINE) == 50
    assert segment["tenants"].forecast(key="tenant-30")["tokens"].spendable == 970
    assert segment["tenants"].forecast(key="tenant-50")["tokens"].spendable == 950


@every_pool
def test_a_call_that_is_refused_is_not_made(segment: sl.Segment, tmp_path: Path, pool: Pool) -> None:
    with (
        segment["places"].acquire(),
        segment["places"].acquire(),
        LimitedExecutor(pool(1), segment["places"], timeout=0.01) as executor,
    ):
        # It would hang if it were called.
        future = executor.submit(pool_jobs.hold_until, tmp_path / "never")
        with pytest.raises(sl.AcquireTimeout) as raised:
            future.result(DEADLINE)
    assert raised.value.binding == "places"


@every_pool
def test_a_call_that_fails_gives_its_place_back(segment: sl.Segment, pool: Pool) -> None:
    with LimitedExecutor(pool(2), segment["places"]) as executor:
        futures = [executor.submit(pool_jobs.fail) for _ in range(6)]
        for future in futures:
            with pytest.raises(LookupError):
                future.result(DEADLINE)
    assert active(segment, "places") == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_that_is_killed_gives_its_place_back(segment: sl.Segment, method: str) -> None:
    for _ in range(3):
        with LimitedExecutor(process_pool(method)(2), segment["places"]) as executor:
            future = executor.submit(pool_jobs.be_killed)
            with pytest.raises(BrokenProcessPool):
                future.result(DEADLINE)
    with segment["places"].acquire(timeout=DEADLINE), segment["places"].acquire(timeout=DEADLINE):
        assert not segment["places"].try_acquire()


def test_calls_in_the_queue_of_the_executor_hold_nothing(segment: sl.Segment, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with LimitedExecutor(ThreadPoolExecutor(1), segment["places"]) as executor:
        futures = [executor.submit(pool_jobs.hold_until, go) for _ in range(5)]
        until(lambda: active(segment, "places") == 1, "the first call")
        assert segment["places"].try_acquire()
        assert futures[-1].cancel()
        go.touch()
    assert active(segment, "places") == 0


def test_there_is_no_current_permit_outside_of_a_call(segment: sl.Segment) -> None:
    with ThreadPoolExecutor(1) as threads:
        executor = LimitedExecutor(threads, segment["places"])
        assert not executor.submit(pool_jobs.no_permit).result(DEADLINE)
        assert threads.submit(pool_jobs.no_permit).result(DEADLINE)
    assert current_permit() is None


def test_serves_asyncio_as_an_executor(segment: sl.Segment) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        calls = (loop.run_in_executor(executor, pool_jobs.squared, number) for number in range(10))
        return list(await asyncio.gather(*calls))

    with LimitedExecutor(ThreadPoolExecutor(4), segment["places"]) as executor:
        assert asyncio.run(main()) == [number**2 for number in range(10)]
    assert snapshot_of(segment, "places")["counts"]["admitted"] == 10


async def _coroutine() -> int:
    return 1


def test_a_call_whose_work_goes_on_holds_its_permit_or_is_an_error(segment: sl.Segment) -> None:
    with LimitedExecutor(ThreadPoolExecutor(1), segment["places"]) as executor:
        parts = executor.submit(lambda: (active(segment, "places") for _ in range(2))).result()
        assert list(parts) == [1, 1]
        assert active(segment, "places") == 0
        with pytest.raises(TypeError, match="yet to be awaited"):
            executor.submit(_coroutine).result()
        assert active(segment, "places") == 0
