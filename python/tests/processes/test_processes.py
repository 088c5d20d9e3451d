"""Handles and permits across processes: every way to start one, signals, deaths, forks and exits."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import process_roles
import pytest
from observing import DEADLINE, active, output_of, queued, run_role, snapshot_of, until
from process_roles import try_and_hold, wait_and_hold

import shmlimit as sl

ROLES = Path(process_roles.__file__)
# These tests are about forking while threads run; Python 3.12 and later warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

every_start_method = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


@pytest.fixture
def segment(tmp_path: Path) -> sl.Segment:
    """A segment with one place, in the set `jobs`."""
    return sl.open(tmp_path / "jobs.limits", config=sl.LimitSet("jobs", [sl.Concurrency("places", 1)]))


@contextmanager
def child_of(method: str, role: Any, limits: sl.SetHandle) -> Iterator[tuple[Any, Any]]:
    """A child that runs a role, and the pipe to it; killed at the end if it is still alive."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=role, args=(limits, theirs))
    child.start()
    theirs.close()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join()
        ours.close()


def told(line: Any) -> Any:
    """What the child says next."""
    assert line.poll(DEADLINE), "the child says nothing"
    return line.recv()


def in_a_fork(work: Any) -> int:
    """Start a forked child that exits with 0 if `work` passes; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code_of(pid: int) -> int:
    """The exit code of a forked child, which is killed if it hangs."""
    ended: list[int] = []

    def has_ended() -> bool:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    try:
        until(has_ended, "the forked child's end")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return ended[0]


@every_start_method
def test_children_share_the_places_of_their_parent(tmp_path: Path, method: str) -> None:
    limits = sl.open(tmp_path / "jobs.limits", config=sl.LimitSet("jobs", [sl.Concurrency("places", 2)]))["jobs"]
    with (
        child_of(method, try_and_hold, limits) as (_, first),
        child_of(method, try_and_hold, limits) as (_, second),
        child_of(method, try_and_hold, limits) as (_, third),
    ):
        answers = [told(line)[1] for line in (first, second, third)]
        assert sorted(answers) == [False, True, True]
        assert not limits.try_acquire()
        admitted = (first, second, third)[answers.index(True)]
        admitted.send("go")
        assert limits.acquire(timeout=DEADLINE)


@every_start_method
def test_a_child_is_a_participant_of_its_own(segment: sl.Segment, method: str) -> None:
    with child_of(method, try_and_hold, segment["jobs"]) as (child, line):
        assert told(line) == (child.pid, True)
        pids = {participant["pid"] for participant in segment.snapshot()["participants"] if participant["alive"]}
        assert {os.getpid(), child.pid} <= pids


@every_start_method
def test_what_a_killed_child_held_comes_back(segment: sl.Segment, method: str) -> None:
    with child_of(method, try_and_hold, segment["jobs"]) as (child, line):
        assert told(line)[1]
        assert not segment["jobs"].try_acquire()
        child.kill()
        child.join()
        assert segment["jobs"].acquire(timeout=DEADLINE)


@every_start_method
def test_a_child_killed_in_line_leaves_its_place_to_the_next(segment: sl.Segment, method: str) -> None:
    permit = segment["jobs"].acquire()
    with child_of(method, wait_and_hold, segment["jobs"]) as (killed, _):
        until(lambda: queued(segment, "jobs") == 1, "the first child in the queue")
        with child_of(method, wait_and_hold, segment["jobs"]) as (_, line):
            told(line)
            until(lambda: queued(segment, "jobs") == 2, "the second child in the queue")
            killed.kill()
            killed.join()
            permit.release()
            assert told(line) == "admitted"


@every_start_method
def test_a_child_in_line_is_admitted_when_its_parent_releases(segment: sl.Segment, method: str) -> None:
    permit = segment["jobs"].acquire()
    with child_of(method, wait_and_hold, segment["jobs"]) as (_, line):
        told(line)
        until(lambda: queued(segment, "jobs") == 1, "the child in the queue")
        permit.release()
        assert told(line) == "admitted"
        assert not segment["jobs"].try_acquire()
        line.send("go")
        assert segment["jobs"].acquire(timeout=DEADLINE)


def test_a_pickled_handle_reopens_the_same_set(segment: sl.Segment) -> None:
    limits = segment["jobs"]
    again = pickle.loads(pickle.dumps(limits))
    assert (again.name, again.path) == (limits.name, limits.path)
    with again.acquire():
        assert not limits.try_acquire()


def test_a_pickled_handle_of_a_removed_segment_says_so(segment: sl.Segment) -> None:
    pickled = pickle.dumps(segment["jobs"])
    path = segment.path
    sl.remove(path, force=True)
    with pytest.raises(sl.NotFound):
        pickle.loads(pickled)


def test_a_permit_cannot_be_pickled(segment: sl.Segment) -> None:
    with segment["jobs"].acquire() as permit, pytest.raises(TypeError):
        pickle.dumps(permit)


def test_a_refusal_that_is_raised_in_a_worker_reaches_the_parent(segment: sl.Segment) -> None:
    with segment["jobs"].acquire(), pytest.raises(sl.AcquireTimeout) as raised:
        segment["jobs"].acquire(timeout=0.001)
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is sl.AcquireTimeout
    assert str(again) == str(raised.value)
    assert (again.set_name, again.binding, again.reason) == ("jobs", "places", "concurrency")


def test_a_permit_of_the_parent_is_inert_in_a_forked_child(segment: sl.Segment) -> None:
    permit = segment["jobs"].acquire()

    def try_everything() -> None:
        with pytest.raises(sl.PermitError, match="forked"):
            permit.settle()
        permit.release()

    assert exit_code_of(in_a_fork(try_everything)) == 0
    assert not segment["jobs"].try_acquire()
    permit.release()
    assert segment["jobs"].try_acquire()


@every_start_method
def test_what_a_killed_process_holds_is_left_out_by_looks_which_change_nothing(
    segment: sl.Segment, method: str
) -> None:
    jobs, path = segment["jobs"], Path(segment.path)

    def looks() -> list[tuple[Any, Any]]:
        verdict, forecast = jobs.peek()["places"], jobs.forecast()["places"]
        assert verdict.admitted == bool(verdict.remaining)
        shown = snapshot_of(segment, "jobs")["limits"][0]
        return [
            (verdict.remaining, verdict.of_dead),
            (forecast.spendable, forecast.of_dead),
            (shown["remaining"], shown["of_dead"]),
        ]

    with child_of(method, try_and_hold, jobs) as (child, line):
        assert told(line)[1]
        assert looks() == [(0, 0)] * 3
        child.kill()
        child.join()
    before = path.read_bytes()
    assert looks() == [(1, 1)] * 3
    assert active(segment, "jobs") == 0
    assert path.read_bytes() == before
    assert jobs.try_acquire()
    assert snapshot_of(segment, "jobs")["counts"]["reclaimed"] == 1


def test_a_permit_of_the_parent_survives_the_exit_of_a_forked_child(segment: sl.Segment) -> None:
    with segment["jobs"].acquire():
        context = multiprocessing.get_context("fork")
        # A child of multiprocessing collects its garbage and runs its exit handlers, unlike one that ends with
        # _exit.
        child = context.Process(target=int)
        child.start()
        child.join(DEADLINE)
        assert child.exitcode == 0
        assert active(segment, "jobs") == 1
        assert not segment["jobs"].try_acquire()


def test_forks_while_another_thread_waits(segment: sl.Segment) -> None:
    permit = segment["jobs"].acquire()
    admitted = threading.Event()

    def wait_and_release() -> None:
        segment["jobs"].acquire(timeout=DEADLINE).release()
        admitted.set()

    def wait_in_the_child() -> None:
        assert not segment["jobs"].try_acquire()
        segment["jobs"].acquire(timeout=DEADLINE).release()

    waiting = threading.Thread(target=wait_and_release)
    waiting.start()
    until(lambda: queued(segment, "jobs") == 1, "the thread in the queue")
    child = in_a_fork(wait_in_the_child)
    until(lambda: queued(segment, "jobs") == 2, "the child in the queue")
    permit.release()
    assert exit_code_of(child) == 0
    assert admitted.wait(DEADLINE)
    waiting.join()
    assert active(segment, "jobs") == 0


def test_forks_again_and_again_while_other_threads_take_and_release(segment: sl.Segment) -> None:
    stop = threading.Event()

    def take_and_release() -> None:
        while not stop.is_set():
            segment["jobs"].acquire(timeout=DEADLINE).release()

    def take_once() -> None:
        segment["jobs"].acquire(timeout=DEADLINE).release()

    threads = [threading.Thread(target=take_and_release) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        codes = [exit_code_of(in_a_fork(take_once)) for _ in range(30)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 30
    assert active(segment, "jobs") == 0


@pytest.mark.parametrize("role", ["exit_with_waiting_daemon_threads", "exit_with_a_cancelled_asyncio_wait"])
def test_an_interpreter_that_ends_with_waits_ends_cleanly(segment: sl.Segment, role: str) -> None:
    with segment["jobs"].acquire():
        assert output_of(run_role(ROLES, role, segment.path)) == (0, "", "")


def test_an_interpreter_that_ends_with_an_abandoned_event_loop_ends_cleanly(segment: sl.Segment) -> None:
    with segment["jobs"].acquire():
        code, output, _ = output_of(run_role(ROLES, "exit_with_an_abandoned_asyncio_wait", segment.path))
        assert (code, output) == (0, "")
    assert segment["jobs"].try_acquire()


@pytest.mark.parametrize(
    ("role", "waits"),
    [
        ("wait_in_the_main_thread", 1),
        ("wait_in_every_thread", 4),
        ("wait_in_a_decorated_function", 1),
        ("wait_in_asyncio", 1),
    ],
)
def test_an_interrupt_ends_a_wait(segment: sl.Segment, role: str, waits: int) -> None:
    with segment["jobs"].acquire():
        process = run_role(ROLES, role, segment.path)
        until(lambda: queued(segment, "jobs") == waits, "the waits")
        process.send_signal(signal.SIGINT)
        code, output, errors = output_of(process)
    assert (code, output) == (0, "interrupted\n"), errors
    assert segment["jobs"].acquire(timeout=DEADLINE)


def test_a_handler_of_sigterm_runs_during_a_wait_which_goes_on(segment: sl.Segment) -> None:
    with segment["jobs"].acquire():
        process = run_role(ROLES, "wait_and_handle_sigterm", segment.path)
        until(lambda: queued(segment, "jobs") == 1, "the wait")
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "handled\n"
        assert queued(segment, "jobs") == 1
    assert output_of(process) == (0, "admitted\n", "")


def test_other_threads_run_on_during_a_wait(segment: sl.Segment) -> None:
    process = run_role(ROLES, "wait_for_a_release_by_another_thread", segment.path)
    assert output_of(process) == (0, "100000\n", "")
