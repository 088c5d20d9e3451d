"""When refused Celery tasks come back: simulated on a clock that stands still between them, without a worker."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shmlimit as sl

celery = pytest.importorskip("celery")

from shmlimit.celery import limited  # noqa: E402

RETRY_DELAY = 1.0
TASKS = 60
TASKS_A_SECOND = 10


class Worker:
    """Runs one task again and again as a worker would, and reads when Celery was told to bring it back."""

    def __init__(self, limits: sl.SetHandle, **options: Any) -> None:
        application = celery.Celery("countdowns", broker="memory://", set_as_current=False)
        application.conf.update(task_ignore_result=True)

        # Not shared: other applications of this process would get it, too.
        @application.task(base=limited(limits, timeout=0, retry_delay=RETRY_DELAY, **options), shared=False)
        def job() -> str:
            return "ran"

        self.job = job

    def run(self, headers: dict[str, Any]) -> tuple[float, dict[str, Any]] | None:
        """Runs the task with a message's headers: None if it ran, else its countdown and its next message's headers."""
        self.job.push_request(
            id="of-a-test", args=(), kwargs={}, headers=headers, called_directly=False, is_eager=False
        )
        try:
            assert self.job() == "ran"
        except celery.exceptions.Retry as sent_back:
            return sent_back.when, sent_back.sig.options["headers"]
        finally:
            self.job.pop_request()
        return None


@pytest.fixture
def clock() -> sl.VirtualClock:
    return sl.VirtualClock()


@pytest.fixture
def opened(segment_path: Path, clock: sl.VirtualClock) -> Callable[..., sl.SetHandle]:
    """Opens a set that follows the clock."""
    return lambda *limits, **options: sl.open(segment_path, sl.LimitSet("jobs", limits, **options), clock=clock)["jobs"]


@pytest.mark.parametrize("algorithm", ["gcra", "token_bucket", "sliding_window", "fixed_window"])
def test_tasks_of_a_rate_end_within_a_tenth_of_the_ideal_and_not_all_at_one_instant(
    opened: Callable[..., sl.SetHandle], clock: sl.VirtualClock, algorithm: str
) -> None:
    random.seed(37)
    burst = {"burst": 1} if algorithm in ("gcra", "token_bucket") else {}
    worker = Worker(opened(sl.Calls("started", TASKS_A_SECOND, 1.0, algorithm=algorithm, **burst)))
    began = clock.now
    ideal = TASKS / TASKS_A_SECOND
    pending: list[tuple[float, int, dict[str, Any]]] = [(began, number, {}) for number in range(TASKS)]
    returns: set[float] = set()
    refusals = 0
    while pending:
        at, number, headers = heapq.heappop(pending)
        if at > clock.now:
            clock.set(at)
        sent_back = worker.run(headers)
        if sent_back is not None:
            countdown, headers = sent_back
            refusals += 1
            returns.add(round(at + countdown, 3))
            heapq.heappush(pending, (at + countdown, number, headers))
    assert clock.now - began <= 1.1 * ideal
    assert len(returns) > refusals / 4, "tasks refused together come back together"


def test_only_refusals_in_a_row_for_want_of_a_place_make_the_delay_longer(
    opened: Callable[..., sl.SetHandle], clock: sl.VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _shortest, longest: longest)
    limits = opened(sl.Concurrency("running", 1), sl.Calls("started", 1, "10s", algorithm="gcra", burst=1))
    worker = Worker(limits)
    headers: dict[str, Any] = {}

    def refused_for_want_of_a_place() -> float:
        nonlocal headers
        clock.advance(60)
        with limits.acquire(timeout=0):
            clock.advance(60)
            sent_back = worker.run(headers)
        assert sent_back is not None
        countdown, headers = sent_back
        return countdown

    assert [refused_for_want_of_a_place() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    clock.advance(60)
    limits.acquire(timeout=0).release()
    for _ in range(5):
        sent_back = worker.run(headers)
        assert sent_back is not None
        countdown, headers = sent_back
        assert 10 <= countdown <= 11.1
    assert [refused_for_want_of_a_place() for _ in range(2)] == [1, 2]


def test_a_place_is_asked_for_again_within_about_as_long_as_tasks_run(
    opened: Callable[..., sl.SetHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _shortest, longest: longest)
    limits = opened(sl.Concurrency("running", 1))
    worker = Worker(limits)

    def countdowns() -> list[float]:
        headers: dict[str, Any] = {}
        seen = []
        with limits.acquire(timeout=0):
            for _ in range(5):
                sent_back = worker.run(headers)
                assert sent_back is not None
                countdown, headers = sent_back
                seen.append(countdown)
        return seen

    assert countdowns() == [1, 2, 4, 8, 8]
    times = itertools.count(0, 0.25)
    monkeypatch.setattr("shmlimit.celery.time", SimpleNamespace(monotonic=lambda: next(times)))
    assert worker.run({}) is None
    assert countdowns() == [0.25, 0.5, 1, 2, 2]
    times = itertools.count(0, 3600)
    assert worker.run({}) is None
    assert countdowns() == [1, 2, 4, 8, 8], "longer than `retry_delay`"


def test_tasks_for_places_end_not_long_after_the_places_could_have_done_them(
    opened: Callable[..., sl.SetHandle], clock: sl.VirtualClock
) -> None:
    random.seed(37)
    limits = opened(sl.Concurrency("running", 2))
    worker = Worker(limits)
    began = clock.now
    work, tasks = 0.1, 40
    numbers = itertools.count()
    # When, in which order, and what: the headers of a task that asks, or the permit of one that ends.
    pending: list[tuple[float, int, dict[str, Any] | sl.Permit]] = [(began, next(numbers), {}) for _ in range(tasks)]
    while pending:
        at, _, what = heapq.heappop(pending)
        if at > clock.now:
            clock.set(at)
        if isinstance(what, sl.Permit):
            what.release()
            worker.job._terms.ran_for(work)
        elif permit := limits.try_acquire():
            heapq.heappush(pending, (at + work, next(numbers), permit))
        else:
            sent_back = worker.run(what)
            assert sent_back is not None
            heapq.heappush(pending, (at + sent_back[0], next(numbers), sent_back[1]))
    assert clock.now - began <= 2 * work * tasks / 2


@pytest.mark.parametrize(
    ("reason", "binding", "countdowns"),
    [
        ("lease", "running", [1, 2, 4, 8, 8]),
        ("lease", "started", [1, 1, 1]),
        ("lease_pending", "running", [1, 1, 1]),
        ("lease_pending", "started", [1, 1, 1]),
        ("store_out", "running", [1, 1, 1]),
        ("store_out", "started", [1, 1, 1]),
        ("table_full", None, [1, 2, 4, 8, 8]),
        ("queue_full", "running", [1, 2, 4, 8, 8]),
    ],
)
def test_a_refusal_without_a_time_doubles_the_delay_only_if_it_is_for_want_of_a_place(
    opened: Callable[..., sl.SetHandle],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    binding: str | None,
    countdowns: list[float],
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _shortest, longest: longest)
    worker = Worker(opened(sl.Concurrency("running", 1), sl.Calls("started", 1, "10s")))

    def refused(*_arguments: object, **_options: object) -> sl.Permit:
        error = sl.AcquireTimeout("of a test")
        error.reason, error.binding = reason, binding
        raise error

    monkeypatch.setattr(sl.SetHandle, "acquire", refused)
    headers: dict[str, Any] = {}
    seen = []
    for _ in countdowns:
        sent_back = worker.run(headers)
        assert sent_back is not None
        countdown, headers = sent_back
        seen.append(countdown)
    assert seen == countdowns


def test_a_removed_segment_does_not_double_the_delay(
    opened: Callable[..., sl.SetHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _shortest, longest: longest)
    limits = opened(sl.Concurrency("running", 1))
    worker = Worker(limits)
    sl.remove(limits.path, force=True)
    headers: dict[str, Any] = {}
    for _ in range(3):
        sent_back = worker.run(headers)
        assert sent_back is not None
        countdown, headers = sent_back
        assert countdown == 1


def test_tasks_refused_for_want_of_a_place_come_back_one_by_one(opened: Callable[..., sl.SetHandle]) -> None:
    random.seed(37)
    limits = opened(sl.Concurrency("running", 1))
    worker = Worker(limits)
    with limits.acquire(timeout=0):
        countdowns = [sent_back[0] for _ in range(TASKS) if (sent_back := worker.run({})) is not None]
    assert len(set(countdowns)) == TASKS
    assert min(countdowns) < RETRY_DELAY / 2 < max(countdowns) <= RETRY_DELAY


def test_a_throttle_holds_tasks_until_it_ends(opened: Callable[..., sl.SetHandle]) -> None:
    limits = opened(sl.Calls("started", 100, "1s"))
    limits.throttle(30)
    sent_back = Worker(limits).run({})
    assert sent_back is not None
    assert 30 <= sent_back[0] <= 33.1


def test_refusals_of_every_kind_count_towards_the_most_that_a_task_bears(opened: Callable[..., sl.SetHandle]) -> None:
    limits = opened(sl.Calls("started", 1, "1h"), sl.Concurrency("running", 1))
    worker = Worker(limits, max_refusals=2)
    with limits.acquire(timeout=0):
        headers: dict[str, Any] = {"of another": "kept"}
        for _ in range(2):
            sent_back = worker.run(headers)
            assert sent_back is not None
            headers = sent_back[1]
            assert headers["of another"] == "kept"
        with pytest.raises(sl.Refused):
            worker.run(headers)


def test_a_task_that_returns_a_coroutine_is_an_error_and_holds_nothing(opened: Callable[..., sl.SetHandle]) -> None:
    limits = opened(sl.Concurrency("running", 1))
    application = celery.Celery("coroutines", broker="memory://", set_as_current=False)

    @application.task(base=limited(limits), shared=False)
    async def job() -> None: ...

    job.push_request(id="of-a-test", args=(), kwargs={}, called_directly=False, is_eager=False)
    with pytest.raises(TypeError, match="yet to be awaited"):
        job()
    job.pop_request()
    limits.acquire(timeout=0).release()
