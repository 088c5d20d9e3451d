"""A provider says that it accepts nothing for a while: until then, no process asks it."""

from __future__ import annotations

import asyncio
import http.server
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, get_args

import aiohttp
import httpx
import pytest
import requests
import urllib3
from conftest import CLOCK_LAG
from observing import DEADLINE, queued, until
from throttled_roles import ask_a_server, try_when_told

import shmlimit as sl
from shmlimit._declaration import Algorithm
from shmlimit.testing import OpenSegment

REQUESTS = sl.Calls("requests", 1000, "1h")


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers 429, and says that it accepts requests again in an hour."""

    def do_GET(self) -> None:
        self.send_response(429)
        self.send_header("Retry-After", "3600")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    """The address of a provider that answers 429."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def process(role: Any, *arguments: object) -> Iterator[Any]:
    """A process that runs a role, and the pipe to it; killed at the end if it is still alive."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=role, args=(*arguments, theirs))
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.kill()
        child.join()
        ours.close()


def told(line: Any) -> Any:
    """What the process says next."""
    assert line.poll(DEADLINE), "the process says nothing"
    return line.recv()


def asked(line: Any) -> Any:
    """What the limits say to a process."""
    line.send("try")
    return told(line)


def test_what_one_process_hears_holds_for_the_others(shmlimit_segment: OpenSegment, provider: str) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS, sl.Concurrency("in_flight", 8)]))["provider"]
    with process(try_when_told, limits) as one, process(try_when_told, limits) as other:
        assert [told(one), told(other)] == ["there", "there"]
        assert asked(one)[0]
        with process(ask_a_server, limits, provider) as hears:
            assert told(hears) is True
        for line in (one, other):
            admitted, reason, wait = asked(line)
            assert (admitted, reason) == (False, "throttled")
            assert 0 < wait <= 3600 + CLOCK_LAG
        limits.reset()
        assert [asked(line)[0] for line in (one, other)] == [True, True]


def test_nothing_is_admitted_before_the_instant_and_everything_at_it(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS, sl.Concurrency("in_flight", 8)]))["provider"]
    with limits.acquire() as permit:
        permit.throttled(retry_after=timedelta(seconds=30))
        refusal = limits.try_acquire()
        assert (bool(refusal), refusal.reason, refusal.binding, refusal.retry_after) == (False, "throttled", None, 30)
        with pytest.raises(sl.AlreadyReleased):
            permit.throttled(30)
    with pytest.raises(sl.AcquireTimeout) as waited:
        limits.acquire(timeout=0)
    assert waited.value.reason == "throttled"
    shmlimit_clock.advance(29.999)
    assert not limits.try_acquire()
    shmlimit_clock.advance(0.001)
    assert limits.try_acquire()


def test_a_shorter_time_does_not_end_a_longer_one_and_less_than_nothing_is_nothing(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    limits.throttle(-5)
    assert limits.check()
    limits.throttle(60)
    limits.throttle(retry_after=1.5)
    assert limits.check().retry_after == 60
    with pytest.raises(ValueError, match="nan is not a time"):
        limits.throttle(float("nan"))
    shmlimit_clock.advance(60)
    assert limits.check()


def test_one_key_is_throttled_and_the_others_are_not(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock
) -> None:
    limits = shmlimit_segment(sl.LimitSet("tenants", [REQUESTS], keyed=100))["tenants"]
    with limits.acquire(key="a") as permit:
        permit.throttled(30)
    limits.throttle(10, key="b")
    assert [limits.check(key=key).reason for key in ("a", "b", "c")] == ["throttled", "throttled", None]
    shmlimit_clock.advance(10)
    assert [limits.check(key=key).reason for key in ("a", "b", "c")] == ["throttled", None, None]
    with pytest.raises(sl.InvalidKey):
        limits.throttle(10)
    with pytest.raises(sl.InvalidKey):
        limits.respect({}, status=429)


def test_an_adaptive_limit_shrinks(shmlimit_segment: OpenSegment) -> None:
    adaptive = sl.Concurrency("in_flight", 20, adaptive="aimd", ceiling=100)
    segment = shmlimit_segment(sl.LimitSet("provider", [adaptive]))
    with segment["provider"].acquire() as permit:
        assert permit.respect({"Retry-After": "30"}, status=429)
    (described,) = segment.snapshot()["sets"]
    assert described["limits"][0]["found_capacity"] < 20
    assert described["throttled_for"] > 0


def test_who_waits_goes_on_waiting_and_is_admitted_when_it_is_over(shmlimit_segment: OpenSegment) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [sl.Concurrency("in_flight", 1)]))["provider"]
    permit = limits.acquire()
    admitted: list[sl.Permit] = []
    waiter = threading.Thread(target=lambda: admitted.append(limits.acquire(timeout=DEADLINE)))
    waiter.start()
    with sl.open(limits.path) as segment:
        until(lambda: queued(segment, "provider") == 1, "a thread in the queue")
        permit.throttled(3600)
        assert (queued(segment, "provider"), admitted) == (1, [])
    limits.reset()
    waiter.join(DEADLINE)
    assert len(admitted) == 1


def test_a_pool_with_failover_goes_to_the_members_that_are_not_throttled(shmlimit_segment: OpenSegment) -> None:
    segment = shmlimit_segment(sl.LimitSet("east", [REQUESTS]), sl.LimitSet("west", [REQUESTS]))
    pool = sl.Pool([segment["east"], segment["west"]], failover=True)
    with pool.acquire() as permit:
        throttled = permit.set_name
        assert permit.respect({"retry-after": "3600"}, status=429)
    for _ in range(4):
        assert {pool.acquire().set_name} == {"east", "west"} - {throttled}
    pool[0].throttle(3600)
    pool[1].throttle(60)
    refusal = pool.try_acquire()
    assert (bool(refusal), refusal.reason) == (False, "throttled")


def of_aiohttp(url: str) -> object:
    async def get() -> object:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response

    return asyncio.run(get())


def raised(get: Callable[[str], Any]) -> Callable[[str], object]:
    """A client that raises for anything but a success; returns the exception that it raised."""

    def raise_for_status(url: str) -> object:
        with pytest.raises((requests.HTTPError, httpx.HTTPStatusError)) as failure:
            get(url).raise_for_status()
        return failure.value

    return raise_for_status


CLIENTS: dict[str, Callable[[str], object]] = {
    "aiohttp": of_aiohttp,
    "urllib3": lambda url: urllib3.PoolManager(retries=False).request("GET", url),
    "requests": requests.get,
    "httpx": httpx.get,
    "requests-error": raised(requests.get),
    "httpx-error": raised(httpx.get),
    # Like the errors of openai and anthropic.
    "error-with-status": lambda url: SimpleNamespace(status_code=429, response=httpx.get(url)),
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_the_responses_of_the_usual_clients_are_read(
    shmlimit_segment: OpenSegment, provider: str, client: Callable[[str], object]
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    assert limits.respect(client(provider))
    wait = limits.check().retry_after
    assert wait is not None
    assert 1 < wait <= 3600 + CLOCK_LAG


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"Retry-After": "30"}, 30),
        (429, {"retry-after": "1.5"}, 1.5),
        (429, {b"Retry-After": b"30"}, 30),
        (429, {"Retry-After": 30}, 30),
        (429, {"Retry-After-Ms": "250", "Retry-After": "1"}, 0.25),
        (429, {"x-ms-retry-after-ms": "40"}, 0.04),
        (429, {"grpc-retry-pushback-ms": "70"}, 0.07),
        (529, {}, 1),
        (529, {"Retry-After": "10"}, 10),
        (403, {"Retry-After": "60"}, 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "600"}, 600),
        (429, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        (429, {"RateLimit": '"requests";r=0;t=17'}, 17),
        # The wait is over already.
        (429, {"Retry-After": "0"}, 1),
        (429, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 1),
        (429, {"Retry-After": "1000000000"}, 1),
        # The answer does not say for how long, or not in a form that can be read.
        (429, {}, 1),
        (429, {"Retry-After": "soon", "no name\n": "x", "x": "no\nvalue"}, 1),
        (503, {"Retry-After": "2"}, 2),
        (200, {"grpc-status": "8", "grpc-retry-pushback-ms": "500"}, 0.5),
    ],
)
def test_the_usual_headers_are_read(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, status: int, headers: Any, wait: float
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    with limits.acquire() as permit:
        assert permit.respect(SimpleNamespace(status=status, headers=headers)) is True
    assert limits.check().retry_after == wait
    shmlimit_clock.advance(wait)
    assert limits.check()


@pytest.mark.parametrize(
    ("headers", "max_wait", "wait"),
    [
        ({"Retry-After": "86400"}, 60, 60),
        ({"Retry-After": "86400"}, timedelta(minutes=5), 300),
        ({"Retry-After": "30"}, 60, 30),
        ({"Retry-After": "30"}, None, 30),
        ({}, 0.5, 0.5),
    ],
)
def test_a_response_throttles_for_no_longer_than_is_allowed(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, headers: Any, max_wait: Any, wait: float
) -> None:
    segment = shmlimit_segment(sl.LimitSet("held", [REQUESTS]), sl.LimitSet("checked", [REQUESTS], keyed=10))
    with segment["held"].acquire() as permit:
        assert permit.respect(headers, status=429, max_wait=max_wait)
    assert segment["held"].check().retry_after == wait
    assert segment["checked"].respect(headers, status=429, max_wait=max_wait, key="a")
    assert segment["checked"].check(key="a").retry_after == wait


def test_what_is_no_time_is_refused_also_where_nothing_throttles(shmlimit_segment: OpenSegment) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    with pytest.raises(ValueError, match="nan is not a time"):
        limits.respect({}, status=200, max_wait=float("nan"))


def test_a_date_is_read(shmlimit_segment: OpenSegment) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    date = format_datetime(datetime.now(timezone.utc) + timedelta(hours=1), usegmt=True)
    assert limits.respect({"Retry-After": date}, status=503)
    wait = limits.check().retry_after
    assert wait is not None
    assert 1 < wait <= 3600 + CLOCK_LAG


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, {"Retry-After": "30"}), (503, {}), (500, {"Retry-After": "30"}), (0, {}), (599, {})],
)
def test_what_says_nothing_changes_nothing(shmlimit_segment: OpenSegment, status: int, headers: Any) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    with limits.acquire() as permit:
        assert permit.respect(SimpleNamespace(status_code=status, headers=headers)) is False
        assert limits.respect(headers, status=status) is False
        permit.settle(requests=0)
    # Asking a permit that has been released is no error either, unless the answer throttles.
    assert permit.respect(headers, status=status) is False
    assert limits.check()


def test_what_is_no_response_is_said(shmlimit_segment: OpenSegment) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    with pytest.raises(TypeError, match="status=429"):
        limits.respect({"Retry-After": "30"})
    with pytest.raises(TypeError, match="no headers"):
        limits.respect(429, status=429)
    error = SimpleNamespace(status=429, headers=None)
    assert limits.respect(error)
    with pytest.raises(TypeError, match="status_code"):
        limits.respect(SimpleNamespace(response={"Retry-After": "30"}))


def of_botocore(code: str, status: int, headers: dict[str, str]) -> SimpleNamespace:
    """A `ClientError` of botocore."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return SimpleNamespace(response={"Error": {"Code": code}, "ResponseMetadata": metadata})


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (of_botocore("ThrottlingException", 400, {"retry-after": "7"}), 7),
        (of_botocore("SlowDown", 503, {}), 1),
        (of_botocore("TooManyRequestsException", 429, {}), 1),
        (of_botocore("Unavailable", 503, {"retry-after": "7"}), 7),
        (of_botocore("Throttling", 400, {}).response, 1),
        (SimpleNamespace(response={"Error": {"Code": "Throttling"}}), 1),
        (of_botocore("ValidationException", 400, {"retry-after": "7"}), None),
        ({"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}, "Body": b""}, None),
        # google.api_core.exceptions.ResourceExhausted, google.genai.errors.ClientError
        (SimpleNamespace(code=HTTPStatus.TOO_MANY_REQUESTS, errors=[], response=None), 1),
        (SimpleNamespace(code=429, response=SimpleNamespace(headers={"retry-after": "9"})), 9),
        (SimpleNamespace(code=404, response=None), None),
        # stripe.RateLimitError, litellm.RateLimitError, googleapiclient.errors.HttpError
        (SimpleNamespace(http_status=429, headers={"retry-after": "4"}, code=None), 4),
        (SimpleNamespace(status_code=429, response=None), 1),
        (SimpleNamespace(status_code=429, resp={"retry-after": "5"}), 5),
    ],
)
def test_the_errors_of_the_usual_libraries_are_read(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, answer: object, wait: float | None
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    assert limits.respect(answer) is (wait is not None)
    assert limits.check().retry_after == (wait or 0)


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_what_was_reserved_comes_back_unless_the_provider_counts_what_it_refuses(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, algorithm: Algorithm
) -> None:
    limits = shmlimit_segment(
        sl.LimitSet(
            "provider",
            [
                sl.Calls("requests", 9, "1h", algorithm=algorithm),
                sl.Rate("tokens", 1000, "1h", algorithm=algorithm),
                sl.Budget("usd", 10, "1h"),
                sl.Concurrency("in_flight", 2),
            ],
        )
    )["provider"]

    def remaining() -> list[Any]:
        return [each.spendable for each in limits.forecast().values()]

    for status, refund, left in [
        (429, {}, [9, 1000, 7, 2]),
        (529, {"refund": True}, [9, 1000, 7, 2]),
        (429, {"refund": False}, [8, 400, 7, 2]),
    ]:
        limits.reset()
        # What was reserved at the instant of a reset, or before it, does not come back.
        shmlimit_clock.advance(1)
        with limits.acquire({"tokens": 600}) as permit:
            permit.debit("usd", 3)
            assert permit.respect({}, status=status, **refund)
        shmlimit_clock.advance(1)
        spendable = remaining()
        # At a constant rate, something is replenished meanwhile.
        assert all(left_at_least <= of for left_at_least, of in zip(left, spendable, strict=True)), spendable
        assert (spendable[1] == 1000) is (left[1] == 1000)
        assert spendable[2:] == left[2:]
    limits.reset()
    shmlimit_clock.advance(1)
    with limits.acquire({"tokens": 600}) as permit:
        permit.settle(tokens=100)
        assert permit.respect({}, status=429)
    shmlimit_clock.advance(1)
    assert remaining()[1] != 1000
    with limits.acquire({"tokens": 600}) as permit:
        assert not permit.respect({}, status=500)
        assert permit.taken["tokens"] == 600


def test_an_error_without_a_response_says_nothing(shmlimit_segment: OpenSegment) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [REQUESTS]))["provider"]
    assert not limits.respect(requests.ConnectionError("refused"))
    assert limits.check()
    assert limits.respect(requests.ConnectionError("refused"), status=429)
    assert limits.check().reason == "throttled"


def test_a_lost_lease_is_logged_as_where_it_is_released(
    shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    limits = shmlimit_segment(sl.LimitSet("provider", [sl.Concurrency("in_flight", 1, lease="30s")]))["provider"]
    permit = limits.acquire()
    shmlimit_clock.advance(30)
    other = limits.acquire()
    permit.throttled(10)
    assert permit.reclaimed
    (record,) = caplog.records
    assert "had run out before it was released" in record.getMessage()
    other.release()
