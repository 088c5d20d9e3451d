"""What is logged about requests that are refused or have to wait, if that was asked for."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from observing import DEADLINE, queued, until

import shmlimit as sl
from shmlimit.testing import OpenSegment

ONE_AN_HOUR = sl.LimitSet("mail", [sl.Calls("sent", 1, "1h", algorithm="fixed_window", align="first_use")])
ONE_AT_A_TIME = sl.LimitSet("work", [sl.Concurrency("slots", 1)])
SPENT = sl.LimitSet("money", [sl.Budget("spent", 10, "calendar:day"), sl.Concurrency("slots", 100)])

Logged = Callable[[], list[dict[str, Any]]]

FIELDS = ("event", "set_name", "label", "limit", "reason", "retry_after", "waited", "admitted", "left_out")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """Returns the fields of what was logged since it was last called."""
    caplog.set_level(logging.INFO, logger="shmlimit")

    def take() -> list[dict[str, Any]]:
        records = [record for record in caplog.records if record.name == "shmlimit" and hasattr(record, "event")]
        assert {record.levelno for record in records} <= {logging.INFO}
        caplog.clear()
        return [{name: getattr(record, name) for name in FIELDS} for record in records]

    return take


def denied(set_name: str, limit: str | None, reason: str, label: str | None = None, **fields: Any) -> dict[str, Any]:
    """The fields of a refusal."""
    return {
        "event": "request_denied",
        "set_name": set_name,
        "label": label,
        "limit": limit,
        "reason": reason,
        "retry_after": None,
        "waited": None,
        "admitted": False,
        "left_out": 0,
        **fields,
    }


def test_each_way_to_be_refused_is_logged(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, logged: Logged
) -> None:
    segment = shmlimit_segment(ONE_AN_HOUR, ONE_AT_A_TIME, SPENT, log_requests=True)
    mail = segment["mail"].labelled("newsletter")
    assert mail.check()
    assert logged() == [], "an admission is not an event"
    mail.check()
    mail.try_acquire()
    refusal = denied("mail", "sent", "rate", "newsletter", retry_after=3600)
    assert logged() == [refusal, refusal]
    segment["mail"].reserve(max_delay=1)
    assert logged() == [{**refusal, "label": None}]
    with segment["work"].acquire(), pytest.raises(sl.Refused), segment["work"].try_acquire():
        pass
    assert logged() == [denied("work", "slots", "concurrency")]
    money = segment["money"]
    with money.acquire() as permit:
        assert permit.debit("spent", 10)
        assert not permit.debit("spent", 1)
        (of_permit,) = logged()
    assert not money.debit("spent", 1)
    (of_set,) = logged()
    assert of_permit == of_set
    assert (of_set["limit"], of_set["reason"]) == ("spent", "budget")


def test_the_message_says_it_too(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shmlimit")
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    mail.check()
    mail.labelled("newsletter").check()
    mail.throttle(7200)
    mail.check()
    assert [record.getMessage() for record in caplog.records] == [
        'request_denied: set mail ("newsletter"): denied by limit sent, rate, retry after 3600.000 s',
        "request_denied: set mail: denied, throttled, retry after 7200.000 s",
    ]


def test_a_label_cannot_pass_for_another_message(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shmlimit")
    label = 'a"): denied\nrequest_denied: set other'
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"].labelled(label)
    mail.check()
    mail.check()
    (record,) = caplog.records
    written = r"""request_denied: set mail ("a\"): denied\nrequest_denied: set other"): denied by limit sent"""
    assert record.getMessage().startswith(written)
    assert record.label == label  # type: ignore[attr-defined]


def test_nothing_is_logged_unless_it_was_asked_for(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    mail = shmlimit_segment(ONE_AN_HOUR)["mail"]
    assert [bool(mail.labelled("newsletter").check()) for _ in range(3)] == [True, False, False]
    assert logged() == []


def test_a_logger_that_is_not_interested_is_not_called(
    shmlimit_segment: OpenSegment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="shmlimit")
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    assert [bool(mail.check()) for _ in range(2)] == [True, False]
    assert caplog.records == []


def test_a_wait_is_logged_with_what_came_of_it(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    segment = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)
    work = segment["work"].labelled("job 7")
    permit = work.acquire()
    with pytest.raises(sl.AcquireTimeout):
        work.acquire(timeout=0.005)
    waited, refused = logged()
    assert waited["waited"] >= 0.005
    waited["waited"] = None
    assert waited == {**denied("work", None, "", "job 7"), "event": "backpressure_wait", "reason": None, "waited": None}
    assert refused == denied("work", "slots", "concurrency", "job 7")

    waiter = threading.Thread(target=lambda: work.acquire(timeout=DEADLINE).release(), name="the one that waits")
    waiter.start()
    until(lambda: queued(segment, "work") == 1, "a thread in the queue")
    permit.release()
    waiter.join(DEADLINE)
    (waited,) = logged()
    assert waited["waited"] > 0
    assert (waited["event"], waited["admitted"], waited["limit"]) == ("backpressure_wait", True, None)


def test_tasks_are_logged_in_their_own_context(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    work = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)["work"]
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    seen: list[tuple[str, str]] = []

    def note(record: logging.LogRecord) -> bool:
        seen.append((request.get("?"), record.event))  # type: ignore[attr-defined]
        return True

    async def ask(name: str) -> None:
        request.set(name)
        with pytest.raises(sl.AcquireTimeout):
            await work.labelled(name).acquire_async(timeout=0.005)

    async def main() -> None:
        async with work.acquire_async():
            await asyncio.gather(ask("a"), ask("b"))

    logger = logging.getLogger("shmlimit")
    logger.addFilter(note)
    try:
        asyncio.run(main())
    finally:
        logger.removeFilter(note)
    assert sorted(seen) == [(name, event) for name in "ab" for event in ("backpressure_wait", "request_denied")]
    assert {(fields["label"], fields["event"]) for fields in logged()} == set(seen)


def test_each_thread_logs_its_own_requests(shmlimit_segment: OpenSegment, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="shmlimit")
    work = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)["work"]

    def wait_in_vain() -> None:
        for _ in range(2):
            with pytest.raises(sl.AcquireTimeout):
                work.labelled(threading.current_thread().name).acquire(timeout=0.001)

    with work.acquire():
        threads = [threading.Thread(target=wait_in_vain, name=f"thread {number}") for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
    assert caplog.records
    for record in caplog.records:
        assert record.threadName == record.label  # type: ignore[attr-defined]


def test_a_pool_logs_all_members_that_refused(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    sets = [shmlimit_segment(declared, log_requests=True) for declared in (ONE_AN_HOUR, ONE_AT_A_TIME)]
    pool = sl.Pool([sets[0]["mail"].labelled("letter"), sets[1]["work"]], failover=True, worker_index=0)
    permits = [pool.acquire(), pool.acquire()]
    logged()

    def told() -> list[tuple[Any, ...]]:
        return sorted((each["set_name"], each["label"], each["event"]) for each in logged())

    refusals = [("mail", "letter", "request_denied"), ("work", None, "request_denied")]
    assert not pool.try_acquire()
    assert told() == refusals
    with pytest.raises(sl.AcquireTimeout):
        pool.acquire(timeout=0.005)
    assert {event for _, _, event in told()} == {"request_denied", "backpressure_wait"}

    async def wait() -> None:
        await pool.labelled("task").acquire_async(timeout=0.005)

    with pytest.raises(sl.AcquireTimeout):
        asyncio.run(wait())
    assert {label for _, label, _ in told()} == {"task"}
    assert len(permits) == 2


def test_a_pool_logs_all_members_that_refused_also_where_one_raises(
    shmlimit_segment: OpenSegment, logged: Logged
) -> None:
    # Each set is in a segment of its own, and so has a log of its own.
    sets = [shmlimit_segment(sl.LimitSet(name, [sl.Calls("sent", 1, "1h")]), log_requests=True) for name in ("a", "b")]
    pool = sl.Pool([sets[0]["a"], sets[1]["b"]], failover=True, worker_index=0)
    for member in pool:
        member.throttle(60)
    with stopped_at("request_denied") as seen, pytest.raises(Stop):
        pool.try_acquire()
    assert seen == ["a", "b"]
    assert logged() == []
    assert not pool.try_acquire()
    assert sorted(each["set_name"] for each in logged()) == ["a", "b"]


def test_many_keys_and_networks_are_logged(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    requests = sl.Calls("requests", 1, "1h")
    networks = sl.Calls("network", 1, "1h", prefix={"ipv4": 24, "ipv6": 48})
    segment = shmlimit_segment(
        sl.LimitSet("tenants", [requests], keyed=100), sl.LimitSet("logins", [networks], keyed=100), log_requests=True
    )
    segment["tenants"].labelled("batch").check_many(["a", "b", "a", "a"])
    assert [(each["set_name"], each["label"]) for each in logged()] == [("tenants", "batch")] * 2
    for _ in range(2):
        segment["logins"].check(key="203.0.113.7")
    (told,) = logged()
    assert (told["set_name"], told["limit"]) == ("logins", "network")


def test_of_a_flood_at_most_ten_a_second_are_logged_and_the_others_counted(
    shmlimit_segment: OpenSegment, logged: Logged
) -> None:
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    mail.check()
    records: list[dict[str, Any]] = []
    refused = 0

    def is_told() -> bool:
        nonlocal refused
        for _ in range(100):
            refused += not mail.check()
        records.extend(logged())
        return len(records) >= 21

    # By then, two seconds have ended, so what was left out of them has been reported.
    until(is_told, "refusals of three seconds")
    told = sum(1 + each["left_out"] for each in records)
    assert len(records) < told <= refused


def test_what_is_logged_of_may_make_requests_of_its_own(shmlimit_segment: OpenSegment) -> None:
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    mail.check()
    told = 0

    def ask_again(_record: logging.LogRecord) -> bool:
        nonlocal told
        told += 1
        mail.check()
        return False

    logger = logging.getLogger("shmlimit")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(ask_again)
    try:
        mail.check()
    finally:
        logger.removeFilter(ask_again)
        logger.setLevel(level)
    # The filter's own requests are refused and logged as well, up to ten a second.
    assert told >= 10


class Stop(BaseException):
    """What a filter raises here, as if it were interrupted."""


@contextmanager
def stopped_at(event: str) -> Iterator[list[str]]:
    """Makes the logger raise `Stop` for an event; yields the names of the sets for which it has done so."""
    sets: list[str] = []

    def stop(record: logging.LogRecord) -> bool:
        if record.event == event:  # type: ignore[attr-defined]
            sets.append(record.set_name)  # type: ignore[attr-defined]
            raise Stop
        return True

    logger = logging.getLogger("shmlimit")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(stop)
    try:
        yield sets
    finally:
        logger.removeFilter(stop)
        logger.setLevel(level)


def wait_in_a_task(limits: sl.SetHandle | sl.Pool) -> None:
    """Waits in a task of a separate event loop."""

    async def wait() -> None:
        await limits.acquire_async(timeout=DEADLINE)

    asyncio.run(wait())


@pytest.mark.parametrize("of_pool", [False, True], ids=["set", "pool"])
@pytest.mark.parametrize("in_task", [False, True], ids=["thread", "task"])
def test_what_a_wait_was_granted_is_given_back_where_logging_raises(
    shmlimit_segment: OpenSegment, of_pool: bool, in_task: bool
) -> None:
    declared = sl.LimitSet("work", [sl.Concurrency("slots", 1), sl.Calls("sent", 100, "1h")])
    segment = shmlimit_segment(declared, log_requests=True)
    work = segment["work"]
    asked = sl.Pool([work]) if of_pool else work
    permit = work.acquire()

    def release_once_it_waits() -> None:
        until(lambda: queued(segment, "work") == 1, "a request in the queue")
        permit.release()

    other = threading.Thread(target=release_once_it_waits)
    other.start()
    with stopped_at("backpressure_wait"), pytest.raises(Stop):
        wait_in_a_task(asked) if in_task else asked.acquire(timeout=DEADLINE)
    other.join(DEADLINE)
    verdicts = work.peek()
    assert (verdicts["slots"].remaining, verdicts["sent"].remaining) == (1, 99)


def test_what_a_pool_took_of_another_member_is_given_back_where_logging_raises(shmlimit_segment: OpenSegment) -> None:
    calls = [sl.Calls("sent", 100, "1h")]
    segment = shmlimit_segment(sl.LimitSet("east", calls), sl.LimitSet("west", calls), log_requests=True)
    pool = sl.Pool([segment["east"], segment["west"]], failover=True, worker_index=0)
    segment["east"].throttle(60)
    # The first request asks the first member first, which refuses it.
    with stopped_at("request_denied"), pytest.raises(Stop):
        pool.try_acquire({"sent": 50})
    assert segment["west"].peek()["sent"].remaining == 100


def test_what_raises_for_one_event_keeps_no_other_from_being_logged(
    shmlimit_segment: OpenSegment, logged: Logged
) -> None:
    work = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)["work"]
    with work.acquire(), stopped_at("backpressure_wait"), pytest.raises(Stop):
        work.acquire(timeout=0.005)
    assert [each["event"] for each in logged()] == ["request_denied"]


def test_a_refusal_stays_one_where_the_logger_fails(
    shmlimit_segment: OpenSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    make = logging.getLogRecordFactory()

    def with_a_label(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        record.label = "of the application"  # type: ignore[attr-defined]
        return record

    logger = logging.getLogger("shmlimit")
    level = logger.level
    logger.setLevel(logging.INFO)
    logging.setLogRecordFactory(with_a_label)
    try:
        answers = [bool(mail.check()) for _ in range(2)]
    finally:
        logging.setLogRecordFactory(make)
        logger.setLevel(level)
    assert answers == [True, False]
    (failure,) = reported
    assert (failure.exc_type, failure.object) == (KeyError, logger)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Raises `InterruptedError` in the main thread when the process gets SIGUSR1."""

    def handle(_signal: int, _frame: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.usefixtures("alarm")
def test_a_wait_that_is_interrupted_is_logged_and_raises(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    segment = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: queued(segment, "work") == 1, "the main thread in the queue")
        signal.pthread_kill(main, signal.SIGUSR1)

    with segment["work"].acquire():
        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(InterruptedError):
            segment["work"].acquire()
        other.join(DEADLINE)
    assert [(each["event"], each["admitted"]) for each in logged()] == [
        ("backpressure_wait", False),
        ("request_denied", False),
    ]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_is_forked_while_threads_wait_logs_its_own_requests(
    shmlimit_segment: OpenSegment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shmlimit")
    segment = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)
    work = segment["work"]
    permit = work.acquire()
    waiter = threading.Thread(target=lambda: work.labelled("parent").acquire(timeout=DEADLINE).release())
    waiter.start()
    until(lambda: queued(segment, "work") == 1, "a thread in the queue")
    pid = os.fork()
    if pid == 0:
        try:
            caplog.clear()
            work.labelled("child").try_acquire()
            labels = [record.label for record in caplog.records]  # type: ignore[attr-defined]
            os._exit(0 if labels == ["child"] else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    permit.release()
    waiter.join(DEADLINE)
    assert [(record.label, record.admitted) for record in caplog.records] == [("parent", True)]  # type: ignore[attr-defined]


def test_a_child_that_is_forked_while_events_are_logged_leaves_them_to_its_parent(
    shmlimit_segment: OpenSegment, logged: Logged
) -> None:
    work = shmlimit_segment(ONE_AT_A_TIME, log_requests=True)["work"]
    children: list[int] = []
    seen = 0

    def fork_once(_record: logging.LogRecord) -> bool:
        nonlocal seen
        seen += 1
        if not children:
            children.append(os.fork())
        return True

    logger = logging.getLogger("shmlimit")
    with work.acquire():
        logger.addFilter(fork_once)
        try:
            # Logs that it waited, and that it was refused; the child is forked between the two.
            with pytest.raises(sl.AcquireTimeout):
                work.labelled("parent").acquire(timeout=0.001)
        finally:
            if children == [0]:
                os._exit(seen)
            logger.removeFilter(fork_once)
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 1, "the child has logged the request of its parent once more"
    assert [each["event"] for each in logged()] == ["backpressure_wait", "request_denied"]


def test_what_is_closed_and_let_go_of_has_logged_everything(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    segment = shmlimit_segment(ONE_AN_HOUR, log_requests=True)
    mail = segment["mail"]
    segment.close()
    mail.check()
    mail.labelled("last").check()
    del mail, segment
    assert [each["label"] for each in logged()] == ["last"]


def label_of(limits: sl.SetHandle, line: Any) -> None:
    """In a process of its own: say what is logged about a request that is refused."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("shmlimit")
    logger.setLevel(logging.INFO)
    logger.addHandler(Keep())
    limits.try_acquire()
    line.send((limits.label, [(record.set_name, record.label) for record in records]))  # type: ignore[attr-defined]


def test_a_labelled_handle_travels_with_its_label(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    segment = shmlimit_segment(ONE_AN_HOUR, log_requests=True)
    mail = segment["mail"].labelled("nightly-import")
    assert (mail.label, mail.name, mail.strict, segment["mail"].label) == ("nightly-import", "mail", True, None)
    assert "nightly-import" in repr(mail)
    for again in (copy.copy(mail), pickle.loads(pickle.dumps(mail)), mail.labelled("other").labelled("nightly-import")):
        assert (type(again), again.label, again.path) == (sl.SetHandle, "nightly-import", mail.path)
    pool = pickle.loads(pickle.dumps(sl.Pool([mail]).labelled("pooled")))
    assert [member.label for member in pool] == ["pooled"]
    assert pickle.loads(pickle.dumps(segment["mail"])).label is None

    mail.check()
    pickle.loads(pickle.dumps(mail)).check()
    assert [each["label"] for each in logged()] == ["nightly-import"]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=label_of, args=(mail, theirs))
    child.start()
    assert ours.poll(DEADLINE)
    assert ours.recv() == ("nightly-import", [("mail", "nightly-import")])
    child.join()


def test_the_successor_of_a_removed_segment_logs_and_labels_as_well(
    shmlimit_segment: OpenSegment, logged: Logged
) -> None:
    segment = shmlimit_segment(ONE_AN_HOUR, log_requests=True)
    mail = segment["mail"].labelled("import")
    sl.remove(segment.path, force=True)
    other = sl.open(segment.path, ONE_AN_HOUR)
    other["mail"].check()
    with pytest.raises(sl.Removed):
        mail.check()
    found: list[sl.SetHandle] = []
    until(lambda: (successor := mail.successor()) is not None and not found.append(successor), "the successor")
    logged()
    assert not found[0].check()
    assert [(each["set_name"], each["label"]) for each in logged()] == [("mail", "import")]


def test_a_label_is_cut_off_after_64_bytes_and_is_text(shmlimit_segment: OpenSegment, logged: Logged) -> None:
    mail = shmlimit_segment(ONE_AN_HOUR, log_requests=True)["mail"]
    long = mail.labelled("x" * 61 + "äö")
    assert long.label == "x" * 61 + "äö"
    long.check()
    long.check()
    assert [each["label"] for each in logged()] == ["x" * 61 + "ä"]
    with pytest.raises(TypeError):
        mail.labelled(7)  # type: ignore[arg-type]
