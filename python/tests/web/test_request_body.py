"""Options that depend on the body of a request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import httpx
import pytest
from conftest import queued
from fastapi import Depends, FastAPI
from starlette.requests import Request

import shmlimit as sl
from shmlimit import asgi
from shmlimit.asgi import request_body
from shmlimit.fastapi import Limited

from .conftest import DEADLINE, Declare

BODY = json.dumps({"tokens": 30, "text": "word" * 50_000}).encode()


async def costs_by_scope(scope: asgi.Scope) -> dict[str, int]:
    body = json.loads(await request_body(scope))
    # Whoever asks again gets the same.
    assert json.loads(await request_body(scope)) == body
    return {"tokens": body["tokens"]}


async def costs_by_request(request: Any) -> dict[str, int]:
    return {"tokens": (await request.json())["tokens"]}


async def echo(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Answers with the body."""
    body = await Request(scope, receive).body()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def under_middleware(limits: sl.SetHandle, timeout: float | None) -> Any:
    return asgi.LimitMiddleware(echo, limits, costs=costs_by_scope, timeout=timeout)


def under_dependency(limits: sl.SetHandle, timeout: float | None) -> Any:
    app = FastAPI()

    @app.post("/")
    async def path(
        request: Request,
        permit: Annotated[sl.Permit, Depends(Limited(limits, costs=costs_by_request, timeout=timeout))],
    ) -> Any:
        assert permit.taken["tokens"] == 30
        return await request.json()

    return app


Make = Callable[[sl.SetHandle, float | None], Any]


@pytest.mark.parametrize("make", [under_middleware, under_dependency])
@pytest.mark.parametrize("timeout", [None, DEADLINE])
@pytest.mark.parametrize("part", [len(BODY), 4096])
def test_costs_see_the_body_and_so_does_the_application(
    make: Make, timeout: float | None, part: int, declare: Declare
) -> None:
    limits = declare(sl.Rate("tokens", 100, 3600, algorithm="fixed_window"))

    async def parts() -> Any:
        for at in range(0, len(BODY), part):
            yield BODY[at : at + part]

    async def ask() -> None:
        transport = httpx.ASGITransport(make(limits, timeout))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for _ in range(3):
                answer = await client.post("/", content=parts())
                assert (answer.status_code, answer.json()) == (200, json.loads(BODY))

    asyncio.run(ask())
    assert limits.peek({"tokens": 0})["tokens"].remaining == 10


def serve(app: Any, leave: asyncio.Event, parts: list[bytes]) -> Awaitable[None]:
    """Serves one request by a client that sends these parts, and leaves when told to."""
    messages = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)} for number, part in enumerate(parts, 1)
    ]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        # FastAPI answers 499 to nobody: a client that leaves is an error of its own.
        assert message.get("status", 499) == 499

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("10.1.2.3", 1),
        "server": ("test", 80),
    }
    return asyncio.ensure_future(app(scope, receive, send))


@pytest.mark.parametrize("make", [under_middleware, under_dependency])
@pytest.mark.parametrize("parts", [[BODY], [BODY[:9], BODY[9:20], BODY[20:]]], ids=len)
def test_a_client_that_leaves_after_its_body_was_read_leaves_the_queue(
    make: Make, parts: list[bytes], declare: Declare
) -> None:
    limits = declare(sl.Rate("tokens", 100, 3600, algorithm="fixed_window"), sl.Concurrency("places", 1))

    async def main() -> None:
        held = limits.acquire({"tokens": 0})
        leave = asyncio.Event()
        served = serve(make(limits, DEADLINE), leave, parts)
        while queued(limits) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        leave.set()
        await asyncio.wait_for(served, DEADLINE / 2)
        assert queued(limits) == 0
        held.release()

    asyncio.run(main())
    assert limits.peek({"tokens": 0})["tokens"].remaining == 100


@pytest.mark.parametrize("timeout", [None, DEADLINE])
def test_a_client_that_leaves_before_the_end_of_its_body_takes_nothing(timeout: float | None, declare: Declare) -> None:
    limits = declare(sl.Rate("tokens", 100, 3600, algorithm="fixed_window"))

    async def main() -> None:
        leave = asyncio.Event()
        app = under_middleware(limits, timeout)
        messages = [{"type": "http.request", "body": BODY[:9], "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0) if messages else await leave.wait()

        async def send(message: Any) -> None:
            pytest.fail(f"nobody is there for {message}")

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        await asyncio.wait_for(app(scope, receive, send), DEADLINE)

    asyncio.run(main())
    assert limits.peek({"tokens": 0})["tokens"].remaining == 100


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_options_can_read_a_body(kind: str) -> None:
    with pytest.raises(LookupError, match="LimitMiddleware"):
        asyncio.run(request_body({"type": kind}))
