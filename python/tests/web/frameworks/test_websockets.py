"""WebSocket connections hold their permits until they are closed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import shmlimit as sl

from ..conftest import DEADLINE, Serve, wait_until


def test_a_socket_takes_a_place_until_it_is_closed(serve: Serve, directory: Path) -> None:
    limits = sl.open(directory / "segment", sl.LimitSet("sockets", limits=[sl.Concurrency("open", 1)]))["sockets"]
    server = serve("uvicorn", "websockets_echo:app", workers=2)
    assert server.get("/ready").body.endswith(b" started"), "the lifespan passes"
    # By default, the client gives up sooner than a busy machine can answer.
    connected = partial(connect, f"ws://127.0.0.1:{server.port}/", open_timeout=DEADLINE, ping_interval=None)
    with connected() as socket:
        socket.send("hello")
        assert socket.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused, connected():
            pass
        response = refused.value.response
        assert response.status_code == 429
        assert json.loads(response.body or b"")["violated-policies"] == ["open"]
    wait_until(lambda: bool(limits.try_acquire()), "the socket's place is free")
