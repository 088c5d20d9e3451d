"""Real workers: the limits hold across them, and what a killed one held comes back."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import joblib
import pytest
from conftest import TIMEOUT, queued, ray_on_loopback, wait_until

import shmlimit
from shmlimit.concurry import CallLimit, LimitPool, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit

# From Python 3.12 on, forking while threads run causes a warning; these limits are meant to survive it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CONTEXTS = ["fork", "spawn", "forkserver"]


def shared_calls(capacity):
    return LimitSet(limits=[CallLimit(window="day", capacity=capacity)], shared=True, mode="process")


def admitted_of(limits, attempts):
    """How many of `attempts` requests one worker is admitted for."""
    return sum(limits.try_acquire().successful for _ in range(attempts))


def report_admitted(limits, attempts, results):
    results.put(admitted_of(limits, attempts))


def hold(limits, results):
    acquisition = limits.acquire(timeout=TIMEOUT)
    results.put(acquisition.successful)
    signal.pause()


@pytest.mark.parametrize("context", CONTEXTS)
def test_admits_five_over_all_workers(context):
    limits = shared_calls(5)
    start = multiprocessing.get_context(context)
    results = start.Queue()
    workers = [start.Process(target=report_admitted, args=(limits, 10, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    admitted = sum(results.get(timeout=TIMEOUT) for _ in workers)
    for worker in workers:
        worker.join(TIMEOUT)
    assert admitted == 5
    assert limits.get_stats()["call_count"]["current_requests"] == 5


def test_workers_of_a_pool_of_processes_share():
    limits = shared_calls(5)
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        admitted = sum(executor.map(admitted_of, [limits] * 6, [3] * 6))
    assert admitted == 5


def test_workers_of_joblib_share():
    limits = shared_calls(5)
    tasks = (joblib.delayed(admitted_of)(limits, 3) for _ in range(6))
    try:
        assert sum(joblib.Parallel(n_jobs=2)(tasks)) == 5
    finally:
        # Otherwise, its workers would wait for more work for minutes.
        joblib.externals.loky.get_reusable_executor().shutdown(wait=True)


def test_workers_of_ray_share():
    with ray_on_loopback() as ray:
        limits = LimitSet(limits=[CallLimit(window="day", capacity=5)], shared=True, mode="ray")

        @ray.remote(num_cpus=0.5)
        def attempt(limits):
            return sum(limits.try_acquire().successful for _ in range(3))

        assert sum(ray.get([attempt.remote(limits) for _ in range(6)], timeout=TIMEOUT)) == 5


def test_workers_share_the_sets_of_a_pool():
    pool = LimitPool(limit_sets=[shared_calls(2), shared_calls(3)])
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        admitted = sum(executor.map(admitted_of, [pool] * 4, [8] * 4))
    assert admitted == 5


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_killed_worker_gives_back_what_it_held(context):
    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True, mode="process")
    start = multiprocessing.get_context(context)
    results = start.Queue()
    worker = start.Process(target=hold, args=(limits, results))
    worker.start()
    assert results.get(timeout=TIMEOUT) is True
    assert not limits.try_acquire().successful
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(TIMEOUT)
    with limits.acquire(timeout=TIMEOUT) as acquisition:
        assert acquisition.successful
    assert limits.get_stats()["connections"]["available"] == 1


def test_a_waiter_is_served_when_the_holder_is_killed():
    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True, mode="process")
    start = multiprocessing.get_context("fork")
    results = start.Queue()
    holder, waiter = (start.Process(target=hold, args=(limits, results)) for _ in range(2))
    holder.start()
    assert results.get(timeout=TIMEOUT) is True
    waiter.start()
    wait_until(lambda: queued(shmlimit.open(limits.path)["limits"]) == 1, "the waiter is in the queue")
    os.kill(holder.pid, signal.SIGKILL)
    assert results.get(timeout=TIMEOUT) is True
    for process in (holder, waiter):
        os.kill(process.pid, signal.SIGKILL)
        process.join(TIMEOUT)


def test_a_forked_child_has_private_limits_of_its_own():
    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)])
    start = multiprocessing.get_context("fork")
    results = start.Queue()
    held = limits.acquire()
    child = start.Process(target=report_admitted, args=(limits, 1, results))
    child.start()
    assert results.get(timeout=TIMEOUT) == 1
    child.join(TIMEOUT)
    assert not limits.try_acquire().successful
    held.release()
    assert limits.try_acquire().successful


def release_what_the_parent_holds(acquisition, results):
    acquisition.update({"tokens": 0})
    acquisition.release()
    results.put(True)


def test_a_forked_child_cannot_release_what_its_parent_holds():
    limits = LimitSet(
        limits=[
            RateLimit(key="tokens", window="day", capacity=4, algorithm="GCRA"),
            ResourceLimit(key="connections", capacity=1),
        ],
        shared=True,
    )
    start = multiprocessing.get_context("fork")
    results = start.Queue()
    held = limits.acquire({"tokens": 4})
    child = start.Process(target=release_what_the_parent_holds, args=(held, results))
    child.start()
    assert results.get(timeout=TIMEOUT) is True
    child.join(TIMEOUT)
    assert not limits.try_acquire({"tokens": 0}).successful
    held.update({"tokens": 1})
    held.release()
    assert limits.get_stats()["connections"]["available"] == 1
    assert limits["tokens"].can_acquire(3)


MAKE = """
import os, signal, sys
from shmlimit.concurry import LimitSet, ResourceLimit
limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True)
print(limits.path, flush=True)
"""


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=TIMEOUT
    ).stdout.split()


def test_the_file_goes_with_its_process():
    (path,) = run(MAKE)
    assert not Path(path).exists()


def test_the_file_goes_with_the_last_object_that_uses_it():
    import pickle

    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True)
    path = Path(limits.path)
    copy, sent = pickle.loads(pickle.dumps(limits)), pickle.dumps(limits)
    assert path.exists()
    del limits
    assert copy.try_acquire().successful
    assert path.exists()
    del copy
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        pickle.loads(sent)


def test_a_set_that_arrives_while_the_last_one_goes_keeps_its_file_or_finds_none():
    import pickle

    def arrive_and_go(sent):
        for _ in range(20):
            try:
                arrived = pickle.loads(sent)
            except FileNotFoundError:
                return
            # A set that has arrived can be used, whatever the other threads release meanwhile.
            arrived.try_acquire().release()
            del arrived

    for _ in range(30):
        limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1000)], shared=True)
        sent = pickle.dumps(limits)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(arrive_and_go, sent) for _ in range(4)]
            del limits
            for thread in running:
                thread.result(TIMEOUT)


def test_the_file_stays_while_another_process_uses_it():
    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True)
    path = Path(limits.path)
    start = multiprocessing.get_context("spawn")
    results, go_on = start.Queue(), start.Event()
    other = start.Process(target=use_after, args=(limits, go_on, results))
    other.start()
    assert results.get(timeout=TIMEOUT) == "attached"
    del limits
    assert path.exists()
    go_on.set()
    assert results.get(timeout=TIMEOUT) is True
    other.join(TIMEOUT)
    assert not path.exists()


def use_after(limits, go_on, results):
    results.put("attached")
    go_on.wait(TIMEOUT)
    results.put(limits.try_acquire().successful)


def test_a_forked_child_leaves_the_file_to_its_parent():
    limits = LimitSet(limits=[ResourceLimit(key="connections", capacity=1)], shared=True)
    child = os.fork()
    if child == 0:
        del limits
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Path(limits.path).exists()


def test_the_file_of_a_killed_process_goes_with_the_next_set():
    killed = subprocess.Popen([sys.executable, "-c", MAKE + "signal.pause()"], stdout=subprocess.PIPE, text=True)
    with killed:
        path = Path(killed.stdout.readline().strip())
        run(MAKE)
        assert path.exists(), "it is in use"
        killed.kill()
    assert path.exists()
    run(MAKE)
    assert not path.exists()


NAMED = """
import sys
from shmlimit.concurry import CallLimit, LimitSet
limits = LimitSet(limits=[CallLimit(window="day", capacity=5)], shared=True, path=sys.argv[1], name="calls")
print(sum(limits.try_acquire().successful for _ in range(3)))
"""


def test_unrelated_programs_share_by_path(segment_path):
    assert [run(NAMED, str(segment_path)) for _ in range(3)] == [["3"], ["2"], ["0"]]
    assert segment_path.exists()
    with pytest.raises(ValueError, match="algorithm"):
        LimitSet(
            limits=[CallLimit(window="day", capacity=5, algorithm="GCRA")],
            shared=True,
            path=segment_path,
            name="calls",
        )
    with pytest.raises(ValueError, match="shared"):
        LimitSet(limits=[CallLimit(window="day", capacity=5)], path=segment_path)


@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_a_set_at_a_path_starts_with_another_number_and_keeps_what_was_counted(segment_path, algorithm):
    def admitted(capacity):
        limits = LimitSet(
            limits=[
                CallLimit(window="day", capacity=capacity, algorithm=algorithm),
                RateLimit(key="tokens", window="day", capacity=100 * capacity, algorithm=algorithm),
            ],
            shared=True,
            path=segment_path,
            name="api",
        )
        return sum(limits.try_acquire(requested={"tokens": 100}).successful for _ in range(30))

    backlog = algorithm in (RateLimitAlgorithm.TokenBucket, RateLimitAlgorithm.LeakyBucket, RateLimitAlgorithm.GCRA)
    # What a bucket has left stays as it is, and raising a limit grants nothing for the past.
    assert (admitted(10), admitted(20)) == ((10, 0) if backlog else (10, 10))


MIGRATED = """
from {library} import CallLimit, LimitPool, LimitSet, LoadBalancingAlgorithm, RateLimit, RateLimitAlgorithm
from {library} import ResourceLimit

def region(name):
    return LimitSet(
        limits=[
            CallLimit(window=3600, algorithm=RateLimitAlgorithm.GCRA, capacity=100),
            RateLimit(key="tokens", window=3600, algorithm=RateLimitAlgorithm.TokenBucket, capacity=1000),
            ResourceLimit(key="connections", capacity=2),
        ],
        shared=True,
        mode="thread",
        config={{"region": name}},
    )

pool = LimitPool(
    limit_sets=[region("east"), region("west")], load_balancing=LoadBalancingAlgorithm.RoundRobin, worker_index=1
)
for tokens in (600, 600, 300, 300, 200):
    attempt = pool.try_acquire(requested={{"tokens": tokens}})
    with attempt:
        print(attempt.config["region"], attempt.successful)
        if attempt.successful:
            attempt.update(usage={{"tokens": tokens // 2}})
print([round(stats["tokens"]["available_tokens"]) for stats in pool.get_stats()["limit_sets"]])
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_import_line_moves_a_program_over():
    original, ours = (run(MIGRATED.format(library=library)) for library in ("concurry", "shmlimit.concurry"))
    assert ours == original
    assert ours[:4] == ["west", "True", "east", "True"]


def test_the_example_shows_the_limit_hold_across_processes():
    example = Path(__file__).parents[2] / "examples" / "concurry_migration.py"
    shown = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, timeout=TIMEOUT
    ).stdout
    assert "admitted 5 of 40 calls" in shown
