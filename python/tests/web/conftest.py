"""Real servers with real workers, and real clients over real sockets."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings

import shmlimit as sl

# Of all tests that are in one process: Django has one set of settings.
settings.configure(
    SECRET_KEY="of the tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=f"{__package__}.frameworks.test_rest_framework",
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
)
django.setup()

APPLICATIONS = Path(__file__).parent / "applications"

# For everything that must happen some time; a machine under load takes long.
DEADLINE = 60.0


@dataclass(frozen=True)
class Reply:
    """What a server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Server:
    """A server with its workers."""

    process: subprocess.Popen[bytes]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def get(self, path: str = "/", headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
        """One request over a connection of its own."""
        connection = self.connect()
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, fields, response.read())
        finally:
            connection.close()

    def get_many(self, count: int, path: str = "/", headers: dict[str, str] | None = None) -> list[Reply]:
        """Many requests, sixteen at a time."""
        with ThreadPoolExecutor(16) as clients:
            return list(clients.map(lambda _: self.get(path, headers), range(count)))


Serve = Callable[..., Server]
Declare = Callable[..., sl.SetHandle]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for what other processes do."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"still waiting until {what}"
        time.sleep(0.005)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in shared memory, of this test alone."""
    path = Path(f"/dev/shm/shmlimit-web-{uuid.uuid4().hex}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def declare(directory: Path) -> Callable[..., sl.SetHandle]:
    """Makes a set of limits."""

    def make(*limits: Any, **options: Any) -> sl.SetHandle:
        return sl.open(directory / "segment", sl.LimitSet("api", limits, **options))["api"]

    return make


@pytest.fixture
def serve(directory: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts `gunicorn` or `uvicorn` with an application of the tests, and stops it in the end."""
    with ExitStack() as servers:

        def start(server: str, application: str, *options: str, workers: int = 4, **environment: str) -> Server:
            variables = {**os.environ, **environment, "DIRECTORY": str(directory), "PYTHONPATH": str(APPLICATIONS)}
            log = tmp_path / f"{server}-{uuid.uuid4().hex}.log"
            running = _running(server, application, options, workers, variables, log)
            return servers.enter_context(running)

        yield start


def _wait_for(server: Server, workers: int, log: Path) -> None:
    """Until every worker has answered: otherwise the first to come does all the work."""
    answered: set[bytes] = set()
    deadline = time.monotonic() + DEADLINE
    while len(answered) < workers:
        try:
            answered |= {reply.body for reply in server.get_many(16, "/ready")}
        except OSError as error:
            raise AssertionError(f"the server does not answer: {log.read_text()}") from error
        assert time.monotonic() < deadline, f"only {answered} of the workers answer: {log.read_text()}"


@contextmanager
def _running(
    server: str,
    application: str,
    options: tuple[str, ...],
    workers: int,
    variables: dict[str, str],
    log: Path,
) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, log.open("wb") as output:
        listening = listener.fileno()
        # Both kill workers that say nothing for a while, which on a busy machine takes long. But uvicorn starts no
        # worker as long as it waits for an answer from one that was killed after it asked: the clients must wait
        # longer.
        patience = str(round(DEADLINE / 4))
        bound = {
            "gunicorn": ["--bind", f"fd://{listening}", "--graceful-timeout", "1", "--timeout", patience],
            "uvicorn": [
                "--fd",
                str(listening),
                "--timeout-graceful-shutdown",
                "1",
                "--timeout-worker-healthcheck",
                patience,
            ],
        }[server]
        process = subprocess.Popen(
            [sys.executable, "-m", server, *bound, "--workers", str(workers), *options, application],
            cwd=log.parent,
            env=variables,
            pass_fds=[listening],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        port = listener.getsockname()[1]
    try:
        running = Server(process, port)
        _wait_for(running, workers, log)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE)
        finally:
            # Workers that are left over, too: they are of the same group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
