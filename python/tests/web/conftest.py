"""Real servers with real workers, and real clients over real sockets."""

from __future__ import annotations

import http.client
import os
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

# For all tests in a process: Django has only one set of settings.
settings.configure(
    SECRET_KEY="of the tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=f"{__package__}.frameworks.test_rest_framework",
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
)
django.setup()

APPLICATIONS = Path(__file__).parent / "applications"

# For everything that must happen eventually; a machine under load takes long.
DEADLINE = 60.0


# gunicorn and uvicorn kill workers that say nothing for this long, and on a busy machine workers are silent for long.
# But uvicorn starts no worker while it waits for an answer from one that was killed after it asked, so the clients
# must wait longer.
_PATIENCE = str(round(DEADLINE / 4))


def _gunicorn(listening: int, workers: int, application: str) -> list[str]:
    patience = ["--graceful-timeout", "1", "--timeout", _PATIENCE]
    return [
        sys.executable,
        "-m",
        "gunicorn",
        "--bind",
        f"fd://{listening}",
        "--workers",
        str(workers),
        *patience,
        application,
    ]


def _uvicorn(listening: int, workers: int, application: str) -> list[str]:
    patience = ["--timeout-graceful-shutdown", "1", "--timeout-worker-healthcheck", _PATIENCE]
    return [sys.executable, "-m", "uvicorn", "--fd", str(listening), "--workers", str(workers), *patience, application]


def _hypercorn(listening: int, workers: int, application: str) -> list[str]:
    patience = ["--graceful-timeout", "1"]
    return [
        sys.executable,
        "-m",
        "hypercorn",
        "--bind",
        f"fd://{listening}",
        "--workers",
        str(workers),
        *patience,
        application,
    ]


def _uwsgi(listening: int, workers: int, application: str) -> list[str]:
    module, _, name = application.partition(":")
    paths = [option for path in sys.path if path for option in ("--pythonpath", path) if "site-packages" in path]
    served = ["--http-socket", f"fd://{listening}", "--master", "--processes", str(workers), "--die-on-term"]
    return ["uwsgi_python3", *served, *paths, "--module", module, "--callable", name]


# How each server is started on a listening socket.
COMMANDS: dict[str, Callable[[int, int, str], list[str]]] = {
    "gunicorn": _gunicorn,
    "uvicorn": _uvicorn,
    "hypercorn": _hypercorn,
    "uwsgi": _uwsgi,
}


@dataclass(frozen=True)
class Reply:
    """A server's answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Server:
    """A server with its workers."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int] | str
    """That of a TCP socket or of a Unix socket."""

    @property
    def port(self) -> int:
        """The port of its TCP socket."""
        assert not isinstance(self.address, str)
        return self.address[1]

    def connect(self, source: str = "") -> http.client.HTTPConnection:
        """A new connection, from the address `source` if that matters."""
        if not isinstance(self.address, str):
            return http.client.HTTPConnection(*self.address, timeout=DEADLINE, source_address=(source, 0))
        connection = http.client.HTTPConnection("of-a-unix-socket", timeout=DEADLINE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.address)
        return connection

    def get(
        self, path: str = "/", headers: dict[str, str] | None = None, method: str = "GET", source: str = ""
    ) -> Reply:
        """One request over a connection of its own."""
        connection = self.connect(source)
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
    """Waits for a condition that other processes bring about."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"still waiting until {what}"
        time.sleep(0.005)


@pytest.fixture
def declare(directory: Path) -> Callable[..., sl.SetHandle]:
    """Makes a set of limits."""

    def make(*limits: Any, **options: Any) -> sl.SetHandle:
        return sl.open(directory / "segment", sl.LimitSet("api", limits, **options))["api"]

    return make


@pytest.fixture
def serve(directory: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts one of `COMMANDS` with an application of the tests, and stops it at the end."""
    with ExitStack() as servers:

        def start(
            server: str,
            application: str,
            *options: str,
            workers: int = 4,
            unix_socket: bool = False,
            **environment: str,
        ) -> Server:
            variables = {**os.environ, **environment, "DIRECTORY": str(directory), "PYTHONPATH": str(APPLICATIONS)}
            name = f"{server}-{uuid.uuid4().hex}"
            log = tmp_path / f"{name}.log"
            family = socket.AF_UNIX if unix_socket else socket.AF_INET
            with socket.socket(family) as listener:
                listener.bind(str(directory / f"{name[:16]}.socket") if unix_socket else ("127.0.0.1", 0))
                listener.listen(512)
                return servers.enter_context(_running(server, application, options, workers, variables, log, listener))

        yield start


def _wait_for(server: Server, workers: int, log: Path) -> None:
    """Waits until every worker has answered: otherwise, the first one to start would do all the work."""
    answered: set[bytes] = set()
    deadline = time.monotonic() + DEADLINE
    while len(answered) < workers:
        try:
            answered |= {reply.body for reply in server.get_many(16, "/ready")}
        except OSError as error:
            raise AssertionError(f"the server does not answer: {log.read_text()}") from error
        assert time.monotonic() < deadline, f"only {answered} of the workers answer: {log.read_text()}"


@contextmanager
def started(command: list[str], listener: socket.socket, variables: dict[str, str], log: Path) -> Iterator[Server]:
    """Runs a server on a listening socket until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=variables,
            pass_fds=[listener.fileno()],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Server(process, listener.getsockname())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE)
        finally:
            # This also kills workers that are left over: they are in the same process group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _running(
    server: str,
    application: str,
    options: tuple[str, ...],
    workers: int,
    variables: dict[str, str],
    log: Path,
    listener: socket.socket,
) -> Iterator[Server]:
    command = [*COMMANDS[server](listener.fileno(), workers, application), *options]
    with started(command, listener, variables, log) as running:
        listener.close()
        _wait_for(running, workers, log)
        yield running
