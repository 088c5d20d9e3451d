"""Callables of the program that raise, in every place that takes one: nothing stays taken or queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from celery import Celery
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from fastapi import Depends, FastAPI, HTTPException

import shmlimit as sl
import shmlimit.asgi
import shmlimit.celery
import shmlimit.django
import shmlimit.fastapi
import shmlimit.futures
import shmlimit.llm
import shmlimit.wsgi
from shmlimit.results import Acquisition

from .public_arguments import callables
from .raising import KINDS, Places, Raises, raises, raises_when_awaited

Case = Callable[[Places, Any], None]
"""Lets what raises be called where an argument is."""

CASES: dict[str, Case] = {}
"""By the argument that takes the callable."""

OPTIONS = ("key", "costs", "exempt", "fails_with", "refund_when", "tier", "overrides")


def case(name: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[f"shmlimit.{name}"] = function
        return function

    return add


def the_key(*_args: object) -> str:
    return "k"


# Functions under a permit.


@case("results.Acquisition.__init__(begin)")
def _(places: Places, raising: Raises) -> None:
    async def acquire() -> None:
        async with Acquisition(raising):
            pass

    asyncio.run(acquire())


def _limited(kind_of_function: str, function: Callable[..., Any] = lambda: None) -> Any:
    """A function of this kind that calls another."""

    def plain(*_args: object) -> Any:
        return function()

    async def coroutine(*_args: object) -> Any:
        answer = function()
        return await answer if asyncio.iscoroutine(answer) else answer

    def generator(*_args: object) -> Iterator[Any]:
        yield None
        yield function()

    async def asynchronous_generator(*_args: object) -> AsyncIterator[Any]:
        yield None
        answer = function()
        yield await answer if asyncio.iscoroutine(answer) else answer

    return {
        "plain": plain,
        "asynchronous": coroutine,
        "generator": generator,
        "asynchronous generator": asynchronous_generator,
    }[kind_of_function]


def _run(kind_of_function: str, function: Callable[..., Any]) -> None:
    async def steps() -> None:
        async for _step in function():
            pass

    if kind_of_function == "asynchronous":
        asyncio.run(function())
    elif kind_of_function == "asynchronous generator":
        asyncio.run(steps())
    elif kind_of_function == "generator":
        list(function())
    else:
        function()


def _add_limited(kind_of_function: str) -> None:
    @case(f"SetHandle.limited(function):{kind_of_function}")
    def _(places: Places, raising: Raises) -> None:
        _run(kind_of_function, places.plain.limited(_limited(kind_of_function, raising)))

    for option in ("costs", "key", "tier", "overrides"):

        @case(f"SetHandle.limited({option}):{kind_of_function}")
        def _(places: Places, raising: Raises, option: str = option) -> None:
            options: dict[str, Any] = {"key": the_key, option: raising}
            _run(kind_of_function, places.keyed.limited(**options)(_limited(kind_of_function)))


for each in ("plain", "asynchronous", "generator", "asynchronous generator"):
    _add_limited(each)


# Calls of models.

_ANSWER = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}


@case("llm.Call.__init__(costs):plain")
def _(places: Places, raising: Raises) -> None:
    with shmlimit.llm.Call(places.plain.acquire(), costs=raising) as call:
        call.note(_ANSWER)


@case("llm.Call.__init__(costs):asynchronous")
def _(places: Places, raising: Raises) -> None:
    async def ask() -> None:
        async with shmlimit.llm.Call(places.plain.acquire_async(), costs=raising) as call:
            call.note(_ANSWER)

    asyncio.run(ask())


# Executors and workers.


@case("futures.LimitedExecutor.submit(function)")
def _(places: Places, raising: Raises) -> None:
    with shmlimit.futures.LimitedExecutor(ThreadPoolExecutor(1), places.plain) as executor:
        executor.submit(raising).result()


def _celery(limits: sl.SetHandle, raising: Raises | None = None, **options: Any) -> None:
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)

    def work() -> None:
        if raising is not None:
            raising()

    # Not shared: the applications of later tests in this process would get it, too.
    result = app.task(base=shmlimit.celery.limited(limits, **options), shared=False)(work).apply()
    if isinstance(result.result, BaseException):
        raise result.result


@case("celery.limited(costs):work")
def _(places: Places, raising: Raises) -> None:
    _celery(places.plain, raising)


for each in ("costs", "key", "tier", "overrides"):

    @case(f"futures.LimitedExecutor.__init__({each})")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        options: dict[str, Any] = {"key": the_key, option: raising}
        with shmlimit.futures.LimitedExecutor(ThreadPoolExecutor(1), places.keyed, **options) as executor:
            executor.submit(int).result()

    @case(f"celery.limited({each})")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        _celery(places.keyed, **{"key": the_key, option: raising})


# Frameworks.


def ask_asgi(app: Any, receive: Any = None, send: Any = None) -> None:
    """One request by a client that stays."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def serve() -> None:
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive_one() -> Any:
            message = next(messages, None)
            return message if message is not None else await asyncio.Event().wait()

        async def send_none(_message: Any) -> None:
            pass

        await app(scope, receive or receive_one, send or send_none)

    asyncio.run(serve())


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _asgi(limits: sl.SetHandle, app: Any = answer, **options: Any) -> Any:
    return shmlimit.asgi.LimitMiddleware(app, limits, **options)


@case("asgi.LimitMiddleware.__init__(app)")
def _(places: Places, raising: Raises) -> None:
    ask_asgi(_asgi(places.plain, raising))


@case("asgi.LimitMiddleware.__init__(app):in the middle")
def _(places: Places, raising: Raises) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await raising()

    ask_asgi(_asgi(places.plain, app))


@case("asgi.LimitMiddleware.__call__(receive)")
def _(places: Places, raising: Raises) -> None:
    ask_asgi(_asgi(places.plain), receive=raising)


@case("asgi.LimitMiddleware.__call__(receive):while it waits")
def _(places: Places, raising: Raises) -> None:
    with places.plain.acquire():
        ask_asgi(_asgi(places.plain, timeout=60), receive=raising)


@case("asgi.LimitMiddleware.__call__(send)")
def _(places: Places, raising: Raises) -> None:
    ask_asgi(_asgi(places.plain), send=raising)


@case("asgi.LimitMiddleware.__call__(send):of a refusal")
def _(places: Places, raising: Raises) -> None:
    with places.plain.acquire():
        ask_asgi(_asgi(places.plain), send=raising)


def ask_wsgi(app: Any, start_response: Any = lambda *_: None) -> None:
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    body = app(environ, start_response)
    try:
        assert b"".join(body) == b"part"
    finally:
        body.close()


def answer_wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"part"]


def _wsgi(limits: sl.SetHandle, app: Any = answer_wsgi, **options: Any) -> Any:
    return shmlimit.wsgi.LimitMiddleware(app, limits, **options)


@case("wsgi.LimitMiddleware.__init__(app)")
def _(places: Places, raising: Raises) -> None:
    ask_wsgi(_wsgi(places.plain, raising))


@case("wsgi.LimitMiddleware.__init__(app):its body")
def _(places: Places, raising: Raises) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        yield from answer_wsgi(environ, start_response)
        raising()

    ask_wsgi(_wsgi(places.plain, app))


@case("wsgi.LimitMiddleware.__init__(app):the iterator of its body")
def _(places: Places, raising: Raises) -> None:
    body = type("Body", (), {"__iter__": raising})
    with pytest.raises(AttributeError):
        body().close()
    middleware = _wsgi(places.plain, lambda *_: body())
    ask_wsgi(middleware)


@case("wsgi.LimitMiddleware.__init__(app):the end of its body")
def _(places: Places, raising: Raises) -> None:
    body = type("Body", (list,), {"close": raising})
    ask_wsgi(_wsgi(places.plain, lambda *_: body([b"part"])))


@case("wsgi.LimitMiddleware.__call__(start_response)")
def _(places: Places, raising: Raises) -> None:
    ask_wsgi(_wsgi(places.plain), raising)


def _fastapi(limits: sl.SetHandle, status: int = 200, **options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(shmlimit.fastapi.Limited(limits, **options))])
    async def path() -> str:
        if status != 200:
            raise HTTPException(status)
        return "part"

    return app


def _django(limits: sl.SetHandle, get_response: Any, **options: Any) -> Any:
    middleware = type(
        "Middleware",
        (shmlimit.django.LimitMiddleware,),
        {"options": {"segment": limits.path, "set": limits.name, **options}},
    )
    return middleware(get_response)


def _send(response: Any) -> None:
    """Sends a response and closes it, as a server does."""

    async def every_part() -> None:
        async for _part in response:
            pass

    try:
        asyncio.run(every_part()) if getattr(response, "is_async", False) else list(response)
    finally:
        response.close()


def _ask_django(middleware: Any) -> None:
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = "127.0.0.1"
    response = middleware(request)
    if asyncio.iscoroutine(response):
        response = asyncio.run(_awaited(response))
    _send(response)


async def _awaited(response: Any) -> Any:
    return await response


async def _respond(_request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"part")


@case("django.LimitMiddleware.__init__(get_response)")
def _(places: Places, raising: Raises) -> None:
    _ask_django(_django(places.plain, raising))


@case("django.LimitMiddleware.__init__(get_response):asynchronous")
def _(places: Places, raising: Raises) -> None:
    async def get_response(_request: HttpRequest) -> Any:
        answer = raising()
        return await answer

    _ask_django(_django(places.plain, get_response))


@case("django.LimitMiddleware.__init__(get_response):its body")
def _(places: Places, raising: Raises) -> None:
    def parts() -> Iterator[bytes]:
        yield b"part"
        raising()

    _ask_django(_django(places.plain, lambda _: StreamingHttpResponse(parts())))


@case("django.LimitMiddleware.__init__(get_response):its asynchronous body")
def _(places: Places, raising: Raises) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"part"
        await raising()

    async def get_response(_request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(parts())

    _ask_django(_django(places.plain, get_response))


@case("django.LimitMiddleware.__init__(get_response):the end of its body")
def _(places: Places, raising: Raises) -> None:
    response = type("Response", (HttpResponse,), {"close": raising})
    _ask_django(_django(places.plain, lambda _: response(b"part")))


@case("django.LimitMiddleware.__init__(get_response):the fields of its response")
def _(places: Places, raising: Raises) -> None:
    response = type("Response", (HttpResponse,), {"__contains__": raising})
    _ask_django(_django(places.plain, lambda _: response(b"part")))


for each in OPTIONS:

    @case(f"asgi.LimitMiddleware.__init__({each})")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        ask_asgi(_asgi(places.keyed, **{"key": the_key, option: raising}))

    @case(f"wsgi.LimitMiddleware.__init__({each})")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        ask_wsgi(_wsgi(places.keyed, **{"key": the_key, option: raising}))

    @case(f"fastapi.Limited.__init__({each})")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        # These options are asked about the status of what the path raises.
        status = 418 if option in ("fails_with", "refund_when") else 200
        ask_asgi(_fastapi(places.keyed, status, **{"key": the_key, option: raising}))

    # Given in settings, which have no signature.
    @case(f"django:{each}")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        _ask_django(_django(places.keyed, lambda _: HttpResponse(b"part"), **{"key": the_key, option: raising}))

    @case(f"django:{each}, asynchronous")
    def _(places: Places, raising: Raises, option: str = each) -> None:
        _ask_django(_django(places.keyed, _respond, **{"key": the_key, option: raising}))


# After the cases, whose names they need.

AWAITING = [
    name
    for name in CASES
    if any(where in name for where in ("asynchronous", ".asgi.", ".fastapi.")) and "while it waits" not in name
]
"""The cases of callables that may be asynchronous. A server that fails while a request waits need not end the wait."""


@pytest.fixture
def places(segment_path: Path) -> Places:
    return Places.at(segment_path)


def test_every_public_argument_that_takes_a_callable_has_a_case() -> None:
    assert callables() == {name.partition(":")[0] for name in CASES if not name.startswith("shmlimit.django:")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(CASES))
def test_a_callable_that_raises_leaves_nothing_taken(name: str, kind: type[BaseException], places: Places) -> None:
    # The exception is kept, as a task or a log would keep it: its traceback keeps everything that was in the frames.
    with pytest.raises(kind) as kept:
        CASES[name](places, raises(kind))
    places.assert_nothing_is_taken()
    assert kept.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AWAITING)
def test_an_asynchronous_callable_that_raises_leaves_nothing_taken(
    name: str, kind: type[BaseException], places: Places
) -> None:
    with pytest.raises(kind) as kept:
        CASES[name](places, raises_when_awaited(kind))
    places.assert_nothing_is_taken()
    assert kept.value
