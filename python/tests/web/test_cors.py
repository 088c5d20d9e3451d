"""Limits inside the CORS middleware, as documented: preflights are not counted, and scripts can read refusals."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import shmlimit as sl
from shmlimit.asgi import ClientAddress, LimitMiddleware

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
