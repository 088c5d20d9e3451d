"""Preflights are not counted, and inside the CORS middleware scripts can read refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import shmlimit as sl
from shmlimit import django, wsgi
from shmlimit.asgi import ClientAddress, LimitMiddleware
from shmlimit.fastapi import Limited

from .conftest import Declare

ORIGIN = {"origin": "https://example.com"}


def test_preflights_are_not_counted_and_refusals_have_the_fields_of_cors(declare: Declare) -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("done"), methods=["POST"])])
    app.add_middleware(LimitMiddleware, limits=declare(sl.Calls("requests", 2, "1h"), keyed=10), key=ClientAddress())
    app.add_middleware(
        CORSMiddleware, allow_origins=["https://example.com"], allow_methods=["POST"], expose_headers=["Retry-After"]
    )

    async def ask() -> list[tuple[int, int, str | None, str | None]]:
        transport = httpx.ASGITransport(app, client=("10.1.2.3", 1))
        answers = []
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for _ in range(3):
                preflight = await client.options("/", headers={**ORIGIN, "access-control-request-method": "POST"})
                posted = await client.post("/", headers=ORIGIN)
                fields = posted.headers
                allowed, exposed = (fields.get(f"access-control-{name}") for name in ("allow-origin", "expose-headers"))
                answers.append((preflight.status_code, posted.status_code, allowed, exposed))
        return answers

    told = ("https://example.com", "Retry-After")
    assert asyncio.run(ask()) == [(200, 200, *told), (200, 200, *told), (200, 429, *told)]


PREFLIGHT = {**ORIGIN, "access-control-request-method": "POST"}
# Requests, and whether they count.
ASKED: list[tuple[str, dict[str, str], bool]] = [
    ("OPTIONS", PREFLIGHT, False),
    ("OPTIONS", ORIGIN, True),
    ("GET", PREFLIGHT, True),
]


def _of_wsgi(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    app = wsgi.LimitMiddleware(_plain_wsgi, limits, key=lambda _: "k")
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
        return client.request(method, "/", headers=fields).status_code


def _plain_wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"done"]


def _of_flask(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    app = Flask("application")
    app.add_url_rule("/", view_func=lambda: "done", methods=["GET", "OPTIONS"])
    app.wsgi_app = wsgi.LimitMiddleware(app.wsgi_app, limits, key=lambda _: "k")  # type: ignore[method-assign]
    return app.test_client().open("/", method=method, headers=fields).status_code


def _of_asgi(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("done"), methods=["GET", "OPTIONS"])])
    app.add_middleware(LimitMiddleware, limits=limits, key=lambda _: "k")
    return _status(app, method, fields)


def _of_fastapi(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    app = FastAPI(dependencies=[Depends(Limited(limits, key=lambda _: "k"))])
    app.api_route("/", methods=["GET", "OPTIONS"])(lambda: "done")
    return _status(app, method, fields)


def _of_django(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    settings = {"segment": limits.path, "set": limits.name, "key": lambda _: "k"}
    request = RequestFactory().generic(method, "/", headers=fields)
    with override_settings(SHMLIMIT=settings):
        return django.LimitMiddleware(lambda _: HttpResponse("done"))(request).status_code


def _of_django_in_tasks(limits: sl.SetHandle, method: str, fields: dict[str, str]) -> int:
    async def answer(_request: Any) -> HttpResponse:
        return HttpResponse("done")

    settings = {"segment": limits.path, "set": limits.name, "key": lambda _: "k"}
    request = AsyncRequestFactory().generic(method, "/", headers=fields)
    with override_settings(SHMLIMIT=settings):
        return asyncio.run(django.LimitMiddleware(answer)(request)).status_code


def _status(app: Any, method: str, fields: dict[str, str]) -> int:
    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.request(method, "/", headers=fields)).status_code

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [_of_wsgi, _of_flask, _of_asgi, _of_fastapi, _of_django, _of_django_in_tasks])
@pytest.mark.parametrize(("method", "fields", "counts"), ASKED)
def test_every_integration_lets_preflights_through_uncounted(
    ask: Callable[..., int], method: str, fields: dict[str, str], counts: bool, declare: Declare
) -> None:
    limits = declare(sl.Calls("requests", 1, "1h", algorithm="fixed_window"), keyed=10)
    assert [ask(limits, method, fields) for _ in range(3)] == ([200, 429, 429] if counts else [200] * 3)
