"""Places of clients that leave and of workers that are killed."""

from __future__ import annotations

import http.client
import os
import select
import signal
from pathlib import Path
from typing import TypeAlias

import pytest

import shmlimit as sl

from .conftest import DEADLINE, Serve, Server, wait_until

SERVERS = [("gunicorn", "plain:wsgi_app"), ("uvicorn", "plain:asgi_app")]
KILLS = 100 if os.environ.get("SHMLIMIT_THOROUGH") == "1" else 25


def _one_at_a_time(directory: Path) -> sl.SetHandle:
    return sl.open(directory / "segment", sl.LimitSet("api", limits=[sl.Concurrency("in_flight", 1)]))["api"]


Connection: TypeAlias = http.client.HTTPConnection


def _start_staying(server: Server, path: str = "/stay") -> tuple[Connection, http.client.HTTPResponse, int]:
    """Sends a request whose answer does not end; also returns the id of the process that answers it."""
    connection = server.connect()
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    return connection, response, int(response.readline())


@pytest.mark.parametrize(
    ("server", "application", "path"),
    [(*SERVERS[0], "/stay"), (*SERVERS[1], "/stay"), (*SERVERS[1], "/stay-without-looking")],
)
def test_a_client_that_leaves_in_the_middle_of_the_body_gives_its_place_back(
    serve: Serve, directory: Path, server: str, application: str, path: str
) -> None:
    limits = _one_at_a_time(directory)
    running = serve(server, application)
    connection, response, _ = _start_staying(running, path)
    assert not limits.try_acquire()
    assert running.get().status == 429
    response.close()
    connection.close()
    wait_until(lambda: running.get().status == 200, "the place is free again")


def test_a_client_that_leaves_while_it_waits_leaves_the_line(serve: Serve, directory: Path) -> None:
    limits = _one_at_a_time(directory)
    running = serve("uvicorn", "plain:patient_app", workers=2)

    def waiting() -> int:
        [snapshot] = sl.open(limits.path).snapshot()["sets"]
        return len(snapshot["tickets"])

    with limits.acquire():
        connection = running.connect()
        connection.request("POST", "/", b"body")
        wait_until(lambda: waiting() == 1, "the request waits in the queue")
        connection.close()
        wait_until(lambda: waiting() == 0, "the request has left the line")
        connection.request("POST", "/", b"the next one's")
        wait_until(lambda: waiting() == 1, "the next request waits in the queue")
    assert connection.getresponse().read() == b"the next one's"
    connection.close()
    assert running.get().status == 200


def test_a_body_that_is_read_while_the_response_is_sent_arrives_in_order(serve: Serve, directory: Path) -> None:
    _one_at_a_time(directory)
    running = serve("uvicorn", "plain:asgi_app", workers=1)
    connection = running.connect()
    body = b"".join(b"%d\n" % number for number in range(200_000))
    connection.request("POST", "/", body)
    assert connection.getresponse().read() == body
    connection.close()
    wait_until(lambda: running.get().status == 200, "the place is free again")


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_a_place_is_free_again_when_the_body_has_ended(
    serve: Serve, directory: Path, server: str, application: str
) -> None:
    _one_at_a_time(directory)
    running = serve(server, application)
    for _ in range(20):
        wait_until(lambda: running.get().status == 200, "the one before has ended")


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_workers_killed_in_the_middle_of_a_request_leave_no_place_taken(
    serve: Serve, directory: Path, server: str, application: str
) -> None:
    limits = _one_at_a_time(directory)
    running = serve(server, application)
    for _ in range(KILLS):
        connection, response, worker = _start_staying(running)
        assert not limits.try_acquire()
        _kill(worker)
        # A process that was refused a moment ago does not look for the dead again at once; one that waits does.
        with limits.acquire(timeout=DEADLINE):
            pass
        response.close()
        connection.close()
    assert running.process.poll() is None


def _kill(process: int) -> None:
    """Kills a process, and returns once all its threads are gone."""
    descriptor = os.pidfd_open(process)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(DEADLINE * 1000), "still dying"
    finally:
        os.close(descriptor)
