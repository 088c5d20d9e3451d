"""Celery tasks under limits, in real prefork workers, through death and revocation."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from observing import DEADLINE, active, queued, snapshot_of, until

import shmlimit as sl

celery = pytest.importorskip("celery")

KILLS = 100 if os.environ.get("SHMLIMIT_THOROUGH") == "1" else 25
CHILDREN = 4


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The application, in a directory of its own."""
    os.environ["SHMLIMIT_CELERY_DIRECTORY"] = str(tmp_path_factory.mktemp("celery"))
    return importlib.import_module("celery_app")


@contextmanager
def worker_of(application: Any, name: str, pool: str = "prefork") -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the queue of this name, with four children or greenlets; killed at the end if it still lives."""
    log = application.DIRECTORY / f"{name}.log"
    command = ["-m", "celery", "-A", "celery_app", "worker", f"--pool={pool}", f"--concurrency={CHILDREN}"]
    quiet = [
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "--loglevel=INFO",
        f"--hostname={name}@%h",
        f"--queues={name}",
    ]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, *command, *quiet],
            cwd=Path(__file__).parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: b" ready." in log.read_bytes() or worker.poll() is not None, "the worker")
        assert worker.poll() is None, log.read_text()
        yield worker
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@pytest.fixture(scope="module")
def worker(application: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The worker that most tests share."""
    with worker_of(application, "shared") as running:
        yield running


def holders(application: Any, name: str) -> set[int]:
    """The live processes that hold permits of a set."""
    holds = snapshot_of(application.segment, name)["holds"]
    return {hold["owner_pid"] for hold in holds if hold["owner_alive"]}


@pytest.mark.usefixtures("worker")
def test_two_places_are_held_by_two_of_four_children(application: Any) -> None:
    results = [application.hold_one_of_two.delay() for _ in range(6)]
    until(lambda: queued(application.segment, "two_places") == CHILDREN - 2, "two children in the queue")
    assert active(application.segment, "two_places") == 2
    (application.DIRECTORY / "two_places").touch()
    pids = {result.get(timeout=DEADLINE) for result in results}
    assert len(pids) > 1
    assert active(application.segment, "two_places") == 0
    assert snapshot_of(application.segment, "two_places")["counts"]["active_high_water"] == 2


@pytest.mark.usefixtures("worker")
def test_refused_tasks_return_when_they_can_be_admitted(application: Any) -> None:
    results = [application.count_retries.delay() for _ in range(6)]
    # None of the tasks has a retry of its own to spend.
    assert [result.get(timeout=DEADLINE) for result in results] == [0] * 6
    counts = snapshot_of(application.segment, "by_rate")["counts"]
    # Four at first and two a second later; a task that comes back an instant early is refused once more. Polling
    # would be refused hundreds of times in these two seconds.
    assert 4 <= counts["refused_rate"] <= 24
    assert counts["admitted"] == 6


@pytest.mark.usefixtures("worker")
def test_a_task_that_was_refused_too_often_fails(application: Any) -> None:
    with application.segment["taken"].acquire():
        result = application.give_up_after_two_refusals.delay()
        with pytest.raises(sl.AcquireTimeout):
            result.get(timeout=DEADLINE)
    assert result.state == "FAILURE"
    assert application.give_up_after_two_refusals.delay().get(timeout=DEADLINE) == "ran"


@pytest.mark.usefixtures("worker")
def test_a_task_that_was_sent_back_is_followed_by_the_rest_of_its_chain(application: Any) -> None:
    def refused() -> int:
        count: int = snapshot_of(application.segment, "taken")["counts"]["refused_concurrency"]
        return count

    with application.segment["taken"].acquire():
        before = refused()
        result = (application.come_back_until_admitted.s() | application.follow.s()).delay()
        until(lambda: refused() >= before + 2, "two refusals")
    assert result.get(timeout=DEADLINE) == ["ran", "followed"]


@pytest.mark.usefixtures("worker")
def test_tasks_wait_for_the_successor_of_a_removed_segment_and_go_on_with_it(application: Any) -> None:
    assert application.run_in_what_was_removed.delay().get(timeout=DEADLINE) == "ran"
    sl.remove(application.REMOVED, force=True)
    result = application.run_in_what_was_removed.delay()
    until(lambda: result.state == "RETRY", "it is sent back")
    latter = sl.open(application.REMOVED, config=application.LIMITS[0])
    assert result.get(timeout=DEADLINE) == "ran"
    assert snapshot_of(latter, "two_places")["counts"]["admitted"] == 1


@pytest.mark.usefixtures("worker")
def test_a_task_may_fail_when_it_is_refused(application: Any) -> None:
    with application.segment["taken"].acquire():
        result = application.fail_when_refused.delay()
        with pytest.raises(sl.Refused):
            result.get(timeout=DEADLINE)


@pytest.mark.usefixtures("worker")
def test_a_task_names_its_key_and_costs_and_settles(application: Any) -> None:
    assert application.spend.delay("acme", used=30).get(timeout=DEADLINE) == 70
    assert application.spend.delay("globex", used=100).get(timeout=DEADLINE) == 0
    tenants = application.segment["tenants"]
    assert tenants.forecast(key="acme")["tokens"].spendable == 970
    assert tenants.forecast(key="globex")["tokens"].spendable == 900


@pytest.mark.usefixtures("worker")
def test_a_task_that_fails_or_retries_gives_its_place_back(application: Any) -> None:
    results = [application.fail.delay() for _ in range(8)]
    retried = application.fail_then_succeed.delay()
    for result in results:
        with pytest.raises(LookupError):
            result.get(timeout=DEADLINE)
    assert retried.get(timeout=DEADLINE) == 1
    assert active(application.segment, "failing") == 0


@pytest.mark.usefixtures("worker")
def test_an_applications_own_class_of_tasks_is_built_on(application: Any) -> None:
    assert application.run_in_context.delay().get(timeout=DEADLINE) == ["in context", True]


@pytest.mark.usefixtures("worker")
def test_a_soft_time_limit_ends_the_wait(application: Any) -> None:
    with application.segment["late"].acquire():
        with pytest.raises(celery.exceptions.SoftTimeLimitExceeded):
            application.wait_longer_than_allowed.delay().get(timeout=DEADLINE)
        assert queued(application.segment, "late") == 0
    assert application.wait_longer_than_allowed.delay().get(timeout=DEADLINE) == "ran"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_task_that_is_revoked_as_it_runs_gives_its_place_back(application: Any, how: str) -> None:
    result = application.hold_and_be_revoked.delay()
    until(lambda: active(application.segment, "revoked") == 1, "the task")
    result.revoke(terminate=True, signal=how)
    application.segment["revoked"].acquire(timeout=DEADLINE).release()


def test_a_task_that_is_called_as_a_function_takes_no_permit(application: Any) -> None:
    with application.segment["taken"].acquire():
        assert application.fail_when_refused() == "ran"


def test_an_eager_task_takes_a_permit_and_fails_when_refused(application: Any) -> None:
    assert application.give_up_after_two_refusals.apply().get() == "ran"
    with application.segment["taken"].acquire(), pytest.raises(sl.AcquireTimeout):
        application.give_up_after_two_refusals.apply().get()


def test_no_place_stays_taken_when_children_are_killed_in_their_tasks(application: Any) -> None:
    with worker_of(application, "killed"):
        results = [application.hold_and_be_killed.apply_async(queue="killed") for _ in range(8)]
        killed: set[int] = set()
        while len(killed) < KILLS:
            victim = min(until(lambda: holders(application, "killed") - killed, "a child that holds a place"))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        (application.DIRECTORY / "killed").touch()
        # The tasks' processes were killed again and again, and no task was lost.
        survivors = {result.get(timeout=DEADLINE) for result in results}
    assert not survivors & killed
    places = application.segment["killed"]
    with places.acquire(timeout=DEADLINE), places.acquire(timeout=DEADLINE):
        assert not places.try_acquire()


@pytest.mark.skipif(find_spec("gevent") is None, reason="needs gevent")
def test_greenlets_that_wait_let_the_others_of_their_worker_run(application: Any) -> None:
    (application.DIRECTORY / "two_places").unlink(missing_ok=True)
    with worker_of(application, "greenlets", "gevent"):
        results = [application.hold_one_of_two.apply_async(queue="greenlets") for _ in range(6)]
        until(lambda: queued(application.segment, "two_places") == CHILDREN - 2, "two greenlets in the queue")
        assert active(application.segment, "two_places") == 2
        # They are in one process, which does other work meanwhile.
        (application.DIRECTORY / "two_places").touch()
        assert len({result.get(timeout=DEADLINE) for result in results}) == 1
    assert active(application.segment, "two_places") == 0


def test_no_place_stays_taken_when_a_whole_worker_is_killed(application: Any) -> None:
    with worker_of(application, "ended") as worker:
        application.hold_and_be_revoked.apply_async(queue="ended")
        until(lambda: active(application.segment, "revoked") == 1, "the task")
        os.killpg(worker.pid, signal.SIGKILL)
        application.segment["revoked"].acquire(timeout=DEADLINE).release()
