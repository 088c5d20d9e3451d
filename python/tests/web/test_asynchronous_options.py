"""Options that are functions: asynchronous ones are awaited if something waits, and refused everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import shmlimit as sl
from shmlimit import asgi, wsgi
from shmlimit.fastapi import Limited
from shmlimit.futures import LimitedExecutor

from .conftest import Declare

# Options that are functions of the request, each with an answer that differs from what a coroutine would be taken for.
ANSWERS: dict[str, Any] = {
    "exempt": False,
    "key": "somebody",
    "costs": {"requests": 2},
    "tier": "gold",
    "overrides": {"requests": 2},
    "fails_with": False,
    "refund_when": False,
}


def _declared(declare: Declare, option: str) -> sl.SetHandle:
    """Four calls a minute, of which each test takes as many as it says; keyed if the option is about keys."""
    of_keys: dict[str, Any] = {
        "key": {"keyed": 10},
        "tier": {"keyed": 10, "tiers": [sl.Tier("gold", {"requests": {"capacity": 2}})]},
        "overrides": {"keyed": sl.Keyed(10, overrides=True)},
    }
    return declare(sl.Calls("requests", 4, 60, algorithm="sliding_window"), **of_keys.get(option, {}))


def _options(option: str, function: Callable[..., Any]) -> dict[str, Any]:
    key = {"key": lambda _: "somebody"} if option in ("tier", "overrides") else {}
    return {**key, option: function}


def _plainly(answer: Any) -> Callable[..., Any]:
    return lambda _: answer


def _asynchronously(answer: Any) -> Callable[..., Any]:
    async def function(_: object) -> Any:
        await asyncio.sleep(0)
        return answer

    return function


def _by_an_object(answer: Any) -> Callable[..., Any]:
    class Asynchronous:
        async def __call__(self, _: object) -> Any:
            return answer

    return Asynchronous()


def _by_a_plain_function(answer: Any) -> Callable[..., Any]:
    """A function that nobody can tell to be asynchronous before it is called."""
    return lambda argument: _asynchronously(answer)(argument)


async def _done(_: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


def _under_middleware(limits: sl.SetHandle, options: dict[str, Any]) -> Any:
    return asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), limits, **options)


def _under_dependency(limits: sl.SetHandle, options: dict[str, Any]) -> Any:
    app = FastAPI()
    app.get("/", dependencies=[Depends(Limited(limits, **options))])(lambda: "done")
    return app


@pytest.mark.parametrize("option", ANSWERS)
@pytest.mark.parametrize("make", [_plainly, _asynchronously, _by_an_object, _by_a_plain_function])
@pytest.mark.parametrize("application", [_under_middleware, _under_dependency])
def test_an_asynchronous_option_says_what_a_plain_one_says(
    application: Callable[..., Any], make: Callable[[Any], Callable[..., Any]], option: str, declare: Declare
) -> None:
    app = application(_declared(declare, option), _options(option, make(ANSWERS[option])))

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [(await client.get("/")).status_code for _ in range(5)]

    admitted = 4 if option in ("exempt", "key", "fails_with", "refund_when") else 2
    assert asyncio.run(statuses()) == [200] * admitted + [429] * (5 - admitted)


@pytest.mark.parametrize("fails", [False, True])
def test_an_asynchronous_option_of_statuses_decides_whether_work_failed(fails: bool, declare: Declare) -> None:
    limits = declare(sl.Concurrency("places", 8, adaptive="aimd", ceiling=8))
    app = asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), limits, fails_with=_asynchronously(fails))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            await client.get("/")

    asyncio.run(ask())
    assert (limits.peek()["places"].remaining < 8) == fails


@pytest.mark.parametrize("option", ANSWERS)
@pytest.mark.parametrize("make", [_asynchronously, _by_an_object])
def test_where_nothing_awaits_an_asynchronous_option_is_refused_when_it_is_given(
    make: Callable[[Any], Callable[..., Any]], option: str, declare: Declare
) -> None:
    limits = _declared(declare, option)
    with pytest.raises(TypeError, match=option):
        wsgi.LimitMiddleware(lambda _environ, _start: [], limits, **_options(option, make(ANSWERS[option])))


@pytest.mark.parametrize("option", ANSWERS)
def test_where_nothing_awaits_a_function_that_gives_a_coroutine_admits_nobody(option: str, declare: Declare) -> None:
    limits = _declared(declare, option)
    served = []

    def application(_environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        served.append(True)
        return [b"done"]

    app = wsgi.LimitMiddleware(application, limits, **_options(option, _by_a_plain_function(ANSWERS[option])))
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
        for _ in range(4):
            with pytest.raises(TypeError, match=option):
                client.get("/")
    assert served == []
    if limits.keyed:
        assert limits.peek(key="somebody")["requests"].remaining == 4


@pytest.mark.parametrize("option", ["costs", "key", "tier", "overrides"])
@pytest.mark.parametrize("make", [_asynchronously, _by_an_object])
def test_where_calls_are_made_by_threads_an_asynchronous_option_is_refused(
    make: Callable[[Any], Callable[..., Any]], option: str, declare: Declare
) -> None:
    limits = _declared(declare, option)
    options = _options(option, make(ANSWERS[option]))
    with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match=option):
        LimitedExecutor(pool, limits, **options)
    celery = pytest.importorskip("shmlimit.celery")
    with pytest.raises(TypeError, match=option):
        celery.limited(limits, **options)


@pytest.mark.parametrize("option", ["costs", "key", "tier", "overrides"])
@pytest.mark.parametrize("make", [_plainly, _asynchronously, _by_an_object])
def test_a_limited_coroutine_function_awaits_what_a_plain_one_refuses(
    make: Callable[[Any], Callable[..., Any]], option: str, declare: Declare
) -> None:
    limits = _declared(declare, option)
    options = _options(option, make(ANSWERS[option]))
    limited = limits.limited(timeout=0, **options)

    async def work(_: object) -> int:
        return 1

    async def stream(_: object) -> Any:
        yield 1

    async def total() -> int:
        done = await limited(work)(None)
        async for part in limited(stream)(None):
            done += part
        return done

    assert asyncio.run(total()) == 2
    if make is not _plainly:
        with pytest.raises(TypeError):
            limited(lambda _: None)
