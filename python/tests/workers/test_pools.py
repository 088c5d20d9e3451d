"""Pools that need no integration of their own, since handles pickle: multiprocessing.Pool, joblib, and Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pool_jobs
import pytest
from conftest import ray_on_loopback
from observing import DEADLINE, active, snapshot_of, until

import shmlimit as sl

# Pools fork while threads of their own run; Python 3.12 and later warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

every_start_method = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


@pytest.fixture
def segment(tmp_path: Path) -> sl.Segment:
    """Two places in one set; in the other seven calls, and no more for a month."""
    calls = sl.Calls("calls", 7, "30d", algorithm="fixed_window", align="first_use")
    return pool_jobs.open_pools(tmp_path, sl.LimitSet("calls", [calls]))


@every_start_method
def test_a_pool_admits_seven_of_two_hundred_by_handles_in_arguments(segment: sl.Segment, method: str) -> None:
    with multiprocessing.get_context(method).Pool(3) as pool:
        calls = [(segment["calls"], turn) for turn in range(200)]
        assert sum(pool.starmap(pool_jobs.check_by_argument, calls)) == 7


@every_start_method
def test_a_pool_admits_seven_of_two_hundred_by_handles_of_its_initializer(segment: sl.Segment, method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(3, initializer=pool_jobs.remember, initargs=(segment["calls"],)) as pool:
        assert sum(pool.map(pool_jobs.check_by_initializer, range(200))) == 7


@every_start_method
def test_a_pool_that_is_terminated_in_its_calls_leaves_no_place_taken(segment: sl.Segment, method: str) -> None:
    with multiprocessing.get_context(method).Pool(3) as pool:
        for _ in range(3):
            pool.apply_async(hold_a_place_for_ever, (segment["places"],))
        until(lambda: active(segment, "places") == 2, "two calls that hold a place")
    with segment["places"].acquire(timeout=DEADLINE), segment["places"].acquire(timeout=DEADLINE):
        assert not segment["places"].try_acquire()


def hold_a_place_for_ever(limits: sl.SetHandle) -> None:
    with limits.acquire():
        signal.pause()


def test_loky_workers_share_the_places(segment: sl.Segment) -> None:
    joblib = pytest.importorskip("joblib")
    calls = (joblib.delayed(pool_jobs.work_under_a_permit)(segment["places"], number) for number in range(100))
    answers = joblib.Parallel(n_jobs=3, backend="loky")(calls)
    assert [number for number, _ in answers] == [number * number for number in range(100)]
    assert os.getpid() not in {pid for _, pid in answers}
    counts = snapshot_of(segment, "places")["counts"]
    assert counts["admitted"] == 100
    assert counts["active_high_water"] <= 2


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_on_loopback(Path(__file__).parent) as ray:
        yield ray


def test_ray_tasks_and_actors_share_the_places(segment: sl.Segment, ray: Any) -> None:
    class Worker:
        def __init__(self, limits: sl.SetHandle) -> None:
            self.limits = limits

        def work(self) -> int:
            return pool_jobs.work_under_a_permit(self.limits, 0)[1]

    task = ray.remote(num_cpus=0.5)(pool_jobs.work_under_a_permit)
    actors = [ray.remote(num_cpus=0.5)(Worker).remote(segment["places"]) for _ in range(2)]
    from_tasks = [task.remote(segment["places"], number) for number in range(30)]
    from_actors = [actor.work.remote() for actor in actors for _ in range(15)]
    assert [square for square, _ in ray.get(from_tasks)] == [number * number for number in range(30)]
    assert len(set(ray.get(from_actors))) == 2
    counts = snapshot_of(segment, "places")["counts"]
    assert counts["admitted"] == 60
    assert counts["active_high_water"] <= 2


def test_a_ray_actor_that_is_killed_gives_its_place_back(segment: sl.Segment, ray: Any) -> None:
    class Holder:
        def hold(self, limits: sl.SetHandle) -> None:
            with limits.acquire():
                time.sleep(DEADLINE)

    holders = [ray.remote(num_cpus=0.5)(Holder).remote() for _ in range(2)]
    for holder in holders:
        holder.hold.remote(segment["places"])
    until(lambda: active(segment, "places") == 2, "two actors that hold a place")
    assert not segment["places"].try_acquire()
    for holder in holders:
        ray.kill(holder)
    segment["places"].acquire(timeout=DEADLINE)
    segment["places"].acquire(timeout=DEADLINE)
