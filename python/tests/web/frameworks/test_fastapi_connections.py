"""The dependency of FastAPI behaves like the middleware: sockets, background tasks, and clients that leave."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import shmlimit as sl
from shmlimit.fastapi import Limited

from ..conftest import DEADLINE, Declare, Serve, wait_until


def _served(serve: Serve, directory: Path) -> tuple[Any, sl.SetHandle, sl.Segment]:
    declared = [
        sl.LimitSet("api", [sl.Concurrency("in_flight", 1)]),
        sl.LimitSet("handlers", [sl.Calls("runs", 9, "1h")]),
    ]
    segment = sl.open(directory / "segment", declared)
    return serve("uvicorn", "fastapi_routes:app", workers=1), segment["api"], segment


def test_a_socket_takes_a_place_until_it_is_closed(serve: Serve, directory: Path) -> None:
    server, limits, _ = _served(serve, directory)
    at = partial(connect, open_timeout=DEADLINE, ping_interval=None)
    with at(f"ws://127.0.0.1:{server.port}/echo") as socket:
        assert socket.response is not None
        assert "in_flight" in socket.response.headers["ratelimit-policy"]
        socket.send("hello")
        assert socket.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused, at(f"ws://127.0.0.1:{server.port}/echo"):
            pass
        response = refused.value.response
        assert response.status_code == 429
        assert json.loads(response.body or b"")["violated-policies"] == ["in_flight"]
    wait_until(lambda: bool(limits.try_acquire()), "the socket's place is free")
    with at(f"ws://127.0.0.1:{server.port}/closed"):
        wait_until(lambda: bool(limits.try_acquire()), "the path has closed its socket, and goes on without its place")


def test_a_socket_is_refused_by_servers_that_cannot_answer_before_the_handshake(declare: Declare) -> None:
    app = FastAPI()
    limits = declare(sl.Concurrency("in_flight", 1))

    @app.websocket("/", dependencies=[Depends(Limited(limits))])
    async def path(socket: WebSocket) -> None:
        await socket.accept()

    with limits.acquire():
        sent = asyncio.run(_connected(app))
    assert [(each["type"], each.get("code")) for each in sent] == [("websocket.close", 1008)]


async def _connected(app: FastAPI) -> list[dict[str, Any]]:
    """What is sent to a client that connects and leaves, by a server that cannot answer before the handshake."""
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1001}])

    async def receive() -> dict[str, Any]:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "subprotocols": [],
        "asgi": {"version": "3.0"},
    }
    await app(scope, receive, send)
    return sent


def test_a_client_that_closes_its_socket_is_no_failure(declare: Declare, directory: Path) -> None:
    app = FastAPI()
    limits = declare(sl.Concurrency("in_flight", 1))

    @app.websocket("/", dependencies=[Depends(Limited(limits))])
    async def path(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()

    with pytest.raises(WebSocketDisconnect):
        asyncio.run(_connected(app))
    assert limits.try_acquire()
    [snapshot] = sl.open(directory / "segment").snapshot()["sets"]
    assert snapshot["limits"][0]["counts"]["failed"] == 0


@pytest.mark.parametrize("made", [None, Response, JSONResponse, StreamingResponse])
@pytest.mark.parametrize("order", ["before", "after"])
def test_background_tasks_run_without_the_place(declare: Declare, made: Any, order: str) -> None:
    app = FastAPI()
    limits = declare(sl.Concurrency("in_flight", 1))
    seen: list[int] = []

    def look() -> None:
        seen.append(int(limits.peek()["in_flight"].remaining))

    def add(tasks: BackgroundTasks) -> None:
        tasks.add_task(look)

    dependencies = [Depends(Limited(limits))]
    dependencies.insert(0 if order == "before" else 1, Depends(add))

    @app.get("/", dependencies=dependencies)
    def path(tasks: BackgroundTasks) -> Any:
        tasks.add_task(look)
        look()
        return "done" if made is None else made(iter(["done"]) if made is StreamingResponse else "done")

    async def get() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/")).status_code

    assert asyncio.run(get()) == 200
    assert seen == [0, 1, 1]


def test_a_place_is_free_while_the_servers_background_task_runs(serve: Serve, directory: Path) -> None:
    server, limits, _ = _served(serve, directory)
    assert server.get("/background").status == 200
    with limits.acquire(timeout=DEADLINE):
        pass


def test_a_client_that_leaves_while_it_waits_leaves_the_queue_and_is_not_served(serve: Serve, directory: Path) -> None:
    server, limits, segment = _served(serve, directory)

    def waiting() -> int:
        return len(segment.snapshot()["sets"][0]["tickets"])

    with limits.acquire():
        connection = server.connect()
        connection.request("POST", "/patient", b"of a client that leaves")
        wait_until(lambda: waiting() == 1, "the request waits in the queue")
        connection.close()
        wait_until(lambda: waiting() == 0, "the request has left the queue")
        body = b"".join(b"%d\n" % number for number in range(200_000))
        connection.request("POST", "/patient", body)
        wait_until(lambda: waiting() == 1, "the next request waits in the queue")
    assert connection.getresponse().read() == body
    connection.close()
    assert segment["handlers"].peek()["runs"].remaining == 9 - 1
    wait_until(lambda: bool(limits.try_acquire()), "the place is free again")
