"""What integrations open follows the clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from fastapi import Depends, FastAPI
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

import shmlimit as sl
import shmlimit.limits_storage
from shmlimit import asgi, wsgi
from shmlimit.django import LimitMiddleware
from shmlimit.fastapi import Limited
from shmlimit.testing import OpenSegment

ONE_AN_HOUR = sl.LimitSet("site", [sl.Calls("requests", 1, "1h", algorithm="gcra")])

Application = Callable[[OpenSegment, Path], Callable[[], int]]


async def _status(app: asgi.LimitMiddleware | FastAPI) -> int:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get("/")).status_code


async def _plain_asgi(scope: object, receive: object, send: asgi.Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def _asgi(open_segment: OpenSegment, _: Path) -> Callable[[], int]:
    app = asgi.LimitMiddleware(_plain_asgi, open_segment(ONE_AN_HOUR)["site"])
    return lambda: asyncio.run(_status(app))


def _wsgi(open_segment: OpenSegment, _: Path) -> Callable[[], int]:
    def plain(environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"done"]

    app = wsgi.LimitMiddleware(plain, open_segment(ONE_AN_HOUR)["site"])

    def get() -> int:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
            return client.get("/").status_code

    return get


def _fastapi(open_segment: OpenSegment, _: Path) -> Callable[[], int]:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(Limited(open_segment(ONE_AN_HOUR)["site"]))])
    def path() -> str:
        return "done"

    return lambda: asyncio.run(_status(app))


def _django(_: OpenSegment, directory: Path) -> Callable[[], int]:
    options = {"segment": directory / "segment", "config": ONE_AN_HOUR, "set": "site"}
    with override_settings(SHMLIMIT=options):
        middleware = LimitMiddleware(lambda _: HttpResponse("done"))

    def get() -> int:
        with closing(middleware(RequestFactory().get("/"))) as response:
            status: int = response.status_code
            return status

    return get


@pytest.mark.parametrize("application", [_asgi, _wsgi, _fastapi, _django])
def test_an_application_admits_again_when_the_clock_was_moved(
    application: Application, shmlimit_segment: OpenSegment, shmlimit_clock: sl.VirtualClock, directory: Path
) -> None:
    get = application(shmlimit_segment, directory)
    assert [get(), get()] == [200, 429]
    shmlimit_clock.advance(3600)
    assert [get(), get()] == [200, 429]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_storage_counts_by_the_clock(strategy: str, shmlimit_clock: sl.VirtualClock, directory: Path) -> None:
    limiter = STRATEGIES[strategy](storage_from_string(f"shm://{directory}/limits"))
    item = parse("2/hour")
    assert [limiter.hit(item, "ann") for _ in range(3)] == [True, True, False]
    # The sliding window counter forgets a window's requests bit by bit during the next one.
    shmlimit_clock.advance(2 * 3600)
    assert [limiter.hit(item, "ann") for _ in range(3)] == [True, True, False]
