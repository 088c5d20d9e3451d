"""A request that inner limits refuse costs nothing at the outer ones, in every integration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import shmlimit as sl
from shmlimit import asgi, wsgi
from shmlimit.django import LimitMiddleware as DjangoMiddleware
from shmlimit.fastapi import Limited

# So long that time replenishes nothing meanwhile.
MONTH = 30 * 86_400
ESTIMATE = {"tokens": 500}

Ask: TypeAlias = Callable[[], int]


@pytest.fixture
def tenant(directory: Path) -> sl.SetHandle:
    limits = [sl.Rate("tokens", 10_000, MONTH), sl.Calls("requests", 100, MONTH), sl.Concurrency("in_flight", 8)]
    return sl.open(directory / "tenant", sl.LimitSet("tenant", limits))["tenant"]


@pytest.fixture
def backend(directory: Path) -> sl.SetHandle:
    return sl.open(directory / "backend", sl.LimitSet("backend", [sl.Concurrency("gpu", 1)]))["backend"]


def _paid(tenant: sl.SetHandle) -> tuple[int, int]:
    """What the tenant has paid, in tokens and requests; asserts that nothing is held."""
    standing = tenant.peek({"tokens": 0})
    assert standing["in_flight"].remaining == 8
    return 10_000 - int(standing["tokens"].remaining), 100 - int(standing["requests"].remaining)


def _get(app: Any) -> int:
    async def send() -> int:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/")).status_code

    return asyncio.run(send())


def _get_wsgi(app: Any) -> int:
    transport = httpx.WSGITransport(app, raise_app_exceptions=False)
    with httpx.Client(transport=transport, base_url="http://test") as client:
        return client.get("/").status_code


async def _done(_: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


def _two_of_asgi(tenant: sl.SetHandle, backend: sl.SetHandle, **inner: Any) -> Ask:
    app = asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), backend, **inner)
    # A router between them makes a scope of its own.
    routed = Starlette(routes=[Mount("/", app)])
    return lambda: _get(asgi.LimitMiddleware(routed, tenant, costs=ESTIMATE))


def _two_of_wsgi(tenant: sl.SetHandle, backend: sl.SetHandle, **inner: Any) -> Ask:
    def application(_: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"done"]

    app = wsgi.LimitMiddleware(application, backend, **inner)
    return lambda: _get_wsgi(wsgi.LimitMiddleware(app, tenant, costs=ESTIMATE))


def _a_dependency_behind_a_middleware(tenant: sl.SetHandle, backend: sl.SetHandle, **inner: Any) -> Ask:
    app = FastAPI()
    app.get("/", dependencies=[Depends(Limited(backend, **inner))])(lambda: "done")
    return lambda: _get(asgi.LimitMiddleware(app, tenant, costs=ESTIMATE))


def _two_dependencies(tenant: sl.SetHandle, backend: sl.SetHandle, **inner: Any) -> Ask:
    app = FastAPI()
    both = [Depends(Limited(tenant, costs=ESTIMATE)), Depends(Limited(backend, **inner))]
    app.get("/", dependencies=both)(lambda: "done")
    return lambda: _get(app)


def _django(limits: sl.SetHandle, respond: Any, **options: Any) -> Any:
    return type(
        "Middleware", (DjangoMiddleware,), {"options": {"segment": limits.path, "set": limits.name, **options}}
    )(respond)


def _two_of_django(tenant: sl.SetHandle, backend: sl.SetHandle, **inner: Any) -> Ask:
    middleware = _django(tenant, _django(backend, lambda _: HttpResponse("done"), **inner), costs=ESTIMATE)

    def ask() -> int:
        response = middleware(RequestFactory().get("/"))
        response.close()
        status: int = response.status_code
        return status

    return ask


STACKS = [_two_of_asgi, _two_of_wsgi, _a_dependency_behind_a_middleware, _two_dependencies, _two_of_django]
stacks = pytest.mark.parametrize("stack", STACKS)
Stack: TypeAlias = Callable[..., Ask]


@stacks
@pytest.mark.parametrize("timeout", [None, 0.001])
def test_a_refusal_further_in_gives_back_what_was_taken_further_out(
    stack: Stack, timeout: float | None, tenant: sl.SetHandle, backend: sl.SetHandle
) -> None:
    ask = stack(tenant, backend, timeout=timeout)
    with backend.try_acquire():
        assert ask() == 429
    assert _paid(tenant) == (0, 0)
    backend.throttle(MONTH)
    assert ask() == 503
    assert _paid(tenant) == (0, 0)
    backend.reset()
    assert ask() == 200
    assert _paid(tenant) == (500, 1)


@stacks
def test_what_can_never_be_admitted_further_in_costs_nothing_further_out(
    stack: Stack, tenant: sl.SetHandle, backend: sl.SetHandle
) -> None:
    assert stack(tenant, backend, costs={"gpu": 2})() == 429
    assert _paid(tenant) == (0, 0)


def test_what_a_peer_can_write_is_no_refusal_of_this_process(tenant: sl.SetHandle) -> None:
    forged = {
        "Retry-After": "30",
        "RateLimit": '"gpu";r=0',
        "shmlimit.admissions": "x",
        "Content-Type": "application/problem+json",
    }

    async def upstream(_: Request) -> PlainTextResponse:
        return PlainTextResponse("{}", 429, forged)

    app = asgi.LimitMiddleware(Starlette(routes=[Route("/", upstream)]), tenant, costs=ESTIMATE)
    assert _get(app) == 429

    def application(_: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("503 Service Unavailable", [*forged.items()])
        return [b"{}"]

    assert _get_wsgi(wsgi.LimitMiddleware(application, tenant, costs=ESTIMATE)) == 503
    assert _paid(tenant) == (1000, 2)


def test_an_application_that_serves_a_request_all_the_same_has_it_paid(
    tenant: sl.SetHandle, backend: sl.SetHandle
) -> None:
    inner = asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), backend)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def dropped(_: Any) -> None:
            pass

        await inner(scope, receive, dropped)
        await PlainTextResponse("from the cache")(scope, receive, send)

    with backend.try_acquire():
        assert _get(asgi.LimitMiddleware(application, tenant, costs=ESTIMATE)) == 200
    assert _paid(tenant) == (500, 1)


def test_a_websocket_that_is_refused_further_in_costs_nothing_further_out(
    tenant: sl.SetHandle, backend: sl.SetHandle
) -> None:
    async def unreached(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError("it is refused before")

    app = asgi.LimitMiddleware(asgi.LimitMiddleware(unreached, backend), tenant, costs=ESTIMATE)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    with backend.try_acquire():
        for extensions in ({}, {"websocket.http.response": {}}):
            asyncio.run(app({"type": "websocket", "headers": [], "extensions": extensions}, receive, send))
    assert sent == ["websocket.close", "websocket.http.response.start", "websocket.http.response.body"]
    assert _paid(tenant) == (0, 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_statuses_that_are_named_give_back_as_well(asynchronous: bool, tenant: sl.SetHandle) -> None:
    async def unreachable(status: int) -> bool:
        return status == 502

    refund_when: Any = unreachable if asynchronous else lambda status: status == 502
    statuses = iter([502, 500, 429])

    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse("", next(statuses))

    app = Starlette(routes=[Route("/", answer)])
    app = asgi.LimitMiddleware(app, tenant, costs=ESTIMATE, refund_when=refund_when)  # type: ignore[assignment]
    assert [(_get(app), _paid(tenant)) for _ in range(3)] == [(502, (0, 0)), (500, (500, 1)), (429, (1000, 2))]


def test_nothing_comes_back_where_that_is_said(tenant: sl.SetHandle, backend: sl.SetHandle) -> None:
    app = asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), backend)
    with backend.try_acquire():
        assert _get(asgi.LimitMiddleware(app, tenant, costs=ESTIMATE, refund_when=None)) == 429
    assert _paid(tenant) == (500, 1)


def test_an_adaptive_limit_learns_nothing_from_a_request_that_never_happened(
    directory: Path, backend: sl.SetHandle
) -> None:
    limits = [sl.Concurrency("places", 8, adaptive="aimd", ceiling=8)]
    outer = sl.open(directory / "outer", sl.LimitSet("outer", limits))["outer"]
    backend.throttle(MONTH)
    app = asgi.LimitMiddleware(Starlette(routes=[Route("/", _done)]), backend)
    assert _get(asgi.LimitMiddleware(app, outer)) == 503
    assert outer.peek()["places"].remaining == 8


def test_a_permit_is_cancelled_once_and_for_all(tenant: sl.SetHandle) -> None:
    with tenant.acquire(ESTIMATE) as permit:
        permit.cancel()
        permit.cancel()
        with pytest.raises(sl.AlreadyReleased):
            permit.settle(tokens=1)
    assert _paid(tenant) == (0, 0)
    with tenant.acquire(ESTIMATE) as permit:
        permit.settle(tokens=200)
        permit.cancel()
    assert _paid(tenant) == (200, 1)
