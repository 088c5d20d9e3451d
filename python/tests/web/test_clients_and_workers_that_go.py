"""Places of clients that leave and of workers that are killed."""

from __future__ import annotations

import http.client
import os
import signal
from pathlib import Path

import pytest

import shmlimit as sl

from .conftest import Serve, Server, wait_until

SERVERS = [("gunicorn", "plain:wsgi_app"), ("uvicorn", "plain:asgi_app")]
KILLS = int(os.environ.get("SHMLIMIT_KILLS", "100"))


def _one_at_a_time(folder: Path) -> sl.Limits:
    return sl.open(folder / "segment", sl.LimitSet("api", limits=[sl.Concurrency("in_flight", 1)]))["api"]


def _start_staying(server: Server) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, int]:
    """Sends a request whose answer does not end; gives the process that answers it, too."""
    connection = server.connect()
    connection.request("GET", "/stay")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    return connection, response, int(response.readline())


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_a_client_that_leaves_in_the_middle_of_the_body_gives_its_place_back(
    serve: Serve, folder: Path, server: str, application: str
) -> None:
    limits = _one_at_a_time(folder)
    running = serve(server, application)
    connection, response, _ = _start_staying(running)
    assert not limits.try_acquire()
    assert running.get().status == 429
    response.close()
    connection.close()
    wait_until(lambda: running.get().status == 200, "the place is free again")


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_a_place_is_free_again_when_the_body_has_ended(
    serve: Serve, folder: Path, server: str, application: str
) -> None:
    _one_at_a_time(folder)
    running = serve(server, application)
    for _ in range(20):
        wait_until(lambda: running.get().status == 200, "the one before has ended")


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_workers_killed_in_the_middle_of_a_request_leave_no_place_taken(
    serve: Serve, folder: Path, server: str, application: str
) -> None:
    limits = _one_at_a_time(folder)
    running = serve(server, application)
    for _ in range(KILLS):
        connection, response, worker = _start_staying(running)
        assert not limits.try_acquire()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not _is_alive(worker), "the worker is dead")
        with limits.try_acquire() as permit:
            assert permit, "nobody has to wait for the place of the dead"
        response.close()
        connection.close()
    assert running.process.poll() is None


def _is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
