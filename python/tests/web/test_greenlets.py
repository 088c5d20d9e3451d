"""Requests that wait in a gevent worker of gunicorn do not keep the worker from serving others."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import shmlimit as sl

from .conftest import Serve, wait_until

# Looked for, not imported: in a process that has imported gevent, `acquire` is a different function.
pytestmark = pytest.mark.skipif(find_spec("gevent") is None, reason="needs gevent")


@pytest.mark.parametrize("preload", [(), ("--preload",)])
def test_a_gevent_worker_serves_others_while_requests_wait(
    serve: Serve, directory: Path, preload: tuple[str, ...]
) -> None:
    limits = sl.open(directory / "segment", sl.LimitSet("api", limits=[sl.Concurrency("in_flight", 1)]))["api"]
    server = serve("gunicorn", "plain:patient_wsgi_app", "--worker-class", "gevent", *preload, workers=1)

    def waiting() -> int:
        [snapshot] = sl.open(limits.path).snapshot()["sets"]
        return len(snapshot["tickets"])

    connections = [server.connect() for _ in range(3)]
    with limits.acquire():
        for connection in connections:
            connection.request("GET", "/")
        wait_until(lambda: waiting() == 3, "the requests wait in the queue")
        assert server.get("/ready").status == 200
    for connection in connections:
        assert connection.getresponse().status == 200
        connection.close()
