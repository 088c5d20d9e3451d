"""Django's middleware, synchronous and asynchronous, as Django's own handlers call it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from django.test.utils import override_settings

import shmlimit as sl
from shmlimit.django import ClientAddress, Header, LimitMiddleware

from ..conftest import wait_until

ONE_AT_A_TIME = sl.LimitSet("site", [sl.Concurrency("in_flight", 1)])
ONE_A_MINUTE = sl.LimitSet("site", [sl.Calls("requests", 1, 60)], keyed=10)


def is_exempt(request: HttpRequest) -> bool:
    return request.path == "/health"


def _middleware(
    directory: Path, get_response: Callable[[HttpRequest], Any], declared: sl.LimitSet, **options: Any
) -> Any:
    options = {"segment": directory / "segment", "config": declared, "set": "site", **options}
    with override_settings(SHMLIMIT=options):
        return LimitMiddleware(get_response)


def _limits(directory: Path) -> sl.SetHandle:
    return sl.open(directory / "segment")["site"]


def _dropped(directory: Path) -> int:
    [snapshot] = sl.open(directory / "segment").snapshot()["sets"]
    assert snapshot["active"] == 0
    count: int = snapshot["limits"][0]["counts"]["failed"]
    return count


@pytest.fixture
def get() -> Callable[..., HttpRequest]:
    """Makes a request."""
    return RequestFactory().get


Get = Callable[..., HttpRequest]


def test_a_key_is_told_the_quota_of_its_tier(directory: Path, get: Get) -> None:
    gold = sl.Tier("gold", {"requests": {"capacity": 3}})
    requests = sl.Calls("requests", 2, 60, algorithm="fixed_window")
    declared = sl.LimitSet("site", [requests], keyed=10, tiers=[gold])
    for tier, quota in [(None, 2), ("gold", 3), (lambda request: request.headers.get("x-plan"), 3)]:
        middleware = _middleware(
            directory, lambda _: HttpResponse("done"), declared, key=Header("x-api-key"), tier=tier
        )
        response = middleware(get("/", headers={"x-api-key": str(tier), "x-plan": "gold"}))
        assert response["RateLimit-Policy"] == f'"requests";q={quota};w=60'
        response.close()


def test_refusals_are_logged_where_the_settings_say_so(
    directory: Path, get: Get, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shmlimit")
    middleware = _middleware(
        directory, lambda _: HttpResponse("done"), ONE_A_MINUTE, key=Header("x-api-key"), log_requests=True
    )
    statuses = [middleware(get("/", headers={"x-api-key": "a"})).status_code for _ in range(2)]
    assert statuses == [200, 429]
    (record,) = caplog.records
    assert (record.event, record.set_name, record.limit) == ("request_denied", "site", "requests")  # type: ignore[attr-defined]


def test_a_response_holds_its_place_until_it_is_closed(directory: Path, get: Get) -> None:
    middleware = _middleware(directory, lambda _: HttpResponse("done"), ONE_AT_A_TIME)
    response = middleware(get("/"))
    assert response["RateLimit"] == '"in_flight";r=0'
    assert middleware(get("/")).status_code == 429
    response.close()
    assert middleware(get("/")).status_code == 200


def test_a_streamed_body_holds_its_place_until_it_has_ended(directory: Path, get: Get) -> None:
    middleware = _middleware(directory, lambda _: StreamingHttpResponse(iter([b"one", b"two"])), ONE_AT_A_TIME)
    body = iter(middleware(get("/")))
    assert next(body) == b"one"
    assert not _limits(directory).try_acquire()
    assert list(body) == [b"two"]
    assert _limits(directory).try_acquire()


def test_an_asynchronous_body_that_is_given_up_gives_its_place_back(directory: Path, get: Get) -> None:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"part"

    async def view(_: HttpRequest) -> HttpResponseBase:
        return StreamingHttpResponse(parts())

    async def scenario() -> None:
        middleware = _middleware(directory, view, ONE_AT_A_TIME)
        assert iscoroutinefunction(middleware)
        response = await middleware(get("/"))
        content = response.streaming_content
        assert await anext(content) == b"part"
        assert not _limits(directory).try_acquire()
        await content.aclose()
        response.close()
        assert _limits(directory).try_acquire()

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_in_its_view_gives_its_place_back(directory: Path, get: Get) -> None:
    async def scenario() -> None:
        is_working = asyncio.Event()

        async def view(_: HttpRequest) -> HttpResponseBase:
            is_working.set()
            await asyncio.Event().wait()
            raise AssertionError

        serving = asyncio.ensure_future(_middleware(directory, view, ONE_AT_A_TIME)(get("/")))
        await is_working.wait()
        assert not _limits(directory).try_acquire()
        serving.cancel()
        await asyncio.wait([serving])
        assert _limits(directory).try_acquire()
        assert _dropped(directory) == 0, "that a client leaves is not a failure of the site"

    asyncio.run(scenario())


def test_requests_wait_in_line_in_both_worlds(directory: Path, get: Get) -> None:
    often = sl.LimitSet("site", [sl.Calls("requests", 1, 0.2)])
    middleware = _middleware(directory, lambda _: HttpResponse(), often, timeout=30)
    assert [middleware(get("/")).status_code for _ in range(3)] == [200] * 3

    async def view(_: HttpRequest) -> HttpResponseBase:
        return HttpResponse()

    async def scenario() -> list[int]:
        asynchronous = _middleware(directory, view, often, timeout=30)
        return [response.status_code for response in await asyncio.gather(*(asynchronous(get("/")) for _ in range(3)))]

    assert asyncio.run(scenario()) == [200] * 3


def test_failures_are_told_to_the_limits(directory: Path, get: Get) -> None:
    def broken_off() -> Iterator[bytes]:
        yield b"part"
        raise ZeroDivisionError

    def view(request: HttpRequest) -> HttpResponseBase:
        if request.path == "/exception":
            raise ZeroDivisionError
        if request.path == "/broken":
            return StreamingHttpResponse(broken_off())
        return HttpResponse(status=int(request.path.strip("/")))

    middleware = _middleware(directory, view, ONE_AT_A_TIME)
    middleware(get("/404")).close()
    middleware(get("/503")).close()
    with pytest.raises(ZeroDivisionError):
        middleware(get("/exception"))
    with pytest.raises(ZeroDivisionError):
        list(middleware(get("/broken")))
    assert _dropped(directory) == 3


def test_fields_are_added_to_those_of_others(directory: Path, get: Get) -> None:
    middleware = _middleware(
        directory, lambda _: HttpResponse(headers={"RateLimit": '"inner";r=1'}), ONE_A_MINUTE, key=ClientAddress()
    )
    response = middleware(get("/"))
    assert response["RateLimit"] == '"inner";r=1, "requests";r=0;t=60'


def test_keys_come_from_headers_addresses_and_named_functions(directory: Path, get: Get) -> None:
    by_address = _middleware(
        directory, lambda _: HttpResponse(), ONE_A_MINUTE, key=ClientAddress(), exempt=f"{__name__}.is_exempt"
    )
    assert [by_address(get("/")).status_code for _ in range(2)] == [200, 429]
    assert [by_address(get("/health")).status_code for _ in range(2)] == [200, 200]
    by_header = _middleware(directory, lambda _: HttpResponse(), ONE_A_MINUTE, key=Header("X-Api-Key"))
    statuses = [by_header(get("/", headers={"x-api-key": key})).status_code for key in ("ann", "ann", "bob")]
    assert statuses == [200, 429, 200]
    nameless = by_header(get("/"))
    assert nameless.status_code == 400
    assert nameless["Content-Type"] == "application/problem+json"


def test_a_derived_class_has_options_of_its_own(directory: Path, get: Get) -> None:
    class Second(LimitMiddleware):
        options = {  # noqa: RUF012
            "segment": directory / "segment",
            "config": ONE_A_MINUTE,
            "set": "site",
            "key": ClientAddress(),
        }

    second = Second(lambda _: HttpResponse())
    assert [second(get("/")).status_code for _ in range(2)] == [200, 429]


def test_settings_that_name_no_set_are_an_error_that_says_so(directory: Path) -> None:
    for options in ({}, {"set": "another"}):
        with (
            override_settings(SHMLIMIT={"segment": directory / "segment", "config": ONE_A_MINUTE, **options}),
            pytest.raises(ImproperlyConfigured, match="SHMLIMIT"),
        ):
            LimitMiddleware(lambda _: HttpResponse())


def test_a_removed_segment_is_followed_by_the_next(directory: Path, get: Get) -> None:
    middleware = _middleware(directory, lambda _: HttpResponse("done"), ONE_AT_A_TIME)
    middleware(get("/")).close()
    sl.remove(directory / "segment", force=True)
    assert middleware(get("/")).status_code == 500
    next_one = sl.open(directory / "segment", sl.LimitSet("site", [sl.Concurrency("in_flight", 2)]))
    wait_until(lambda: middleware(get("/")).status_code == 200, "the successor is found")
    assert next_one["site"].peek()["in_flight"].remaining is not None


def test_a_rule_of_failures_that_raises_keeps_no_place(directory: Path, get: Get) -> None:
    def fails_with(status: int) -> bool:
        raise ValueError(f"{status} is not known")

    middleware = _middleware(directory, lambda _: HttpResponse("done"), ONE_AT_A_TIME, fails_with=fails_with)
    with pytest.raises(ValueError, match="200 is not known") as raised:
        middleware(get("/"))
    # Even while the traceback still refers to everything that was in the frames.
    assert _limits(directory).try_acquire(), raised


def test_a_closed_response_is_freed_without_the_garbage_collector(directory: Path, get: Get) -> None:
    middleware = _middleware(directory, lambda _: HttpResponse("done"), ONE_AT_A_TIME)
    response = middleware(get("/"))
    freed = weakref.ref(response)
    gc.disable()
    try:
        response.close()
        del response
        assert freed() is None
    finally:
        gc.enable()
