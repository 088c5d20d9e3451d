"""Starts a server with four workers, sends it requests over real sockets and shows what comes back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REQUESTS = 40

# Where the limits are, as the process that starts the workers tells them. An application of yours names a path of its
# own, such as /dev/shm/myapp.limits.
DIRECTORY = os.environ.get("LIMITS_DIRECTORY") or tempfile.mkdtemp(prefix="shmlimit-example-", dir="/dev/shm")


def main(server: str, application: str) -> None:
    """Shows how one limit holds across all workers.

    Args:
        server: `gunicorn` or `uvicorn`.
        application: Where the server finds the application, as `module:name`.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        bound = ["--bind", f"fd://{descriptor}"] if server == "gunicorn" else ["--fd", str(descriptor)]
        process = subprocess.Popen(
            [sys.executable, "-m", server, "--workers", "4", *bound, "--log-level", "error", application],
            cwd=Path(__file__).parent,
            env={**os.environ, "LIMITS_DIRECTORY": DIRECTORY},
            pass_fds=[descriptor],
        )
    try:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(_ask, [f"http://127.0.0.1:{port}/"] * REQUESTS))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(DIRECTORY)
    _show(f"{server}, 4 workers, {REQUESTS} requests", answers)


def _ask(address: str) -> tuple[int, dict[str, str], str]:
    try:
        with urllib.request.urlopen(address) as response:
            return response.status, dict(response.headers), response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read().decode()


def _show(what: str, answers: list[tuple[int, dict[str, str], str]]) -> None:
    print(f"{what}:")
    for status, count in sorted(Counter(status for status, _, _ in answers).items()):
        print(f"  {count:3} x {status}")
    for status in (200, 429):
        _, headers, body = next(answer for answer in answers if answer[0] == status)
        print(f"one of the {status}:")
        for name, value in headers.items():
            if name.lower() in ("content-type", "retry-after", "ratelimit", "ratelimit-policy"):
                print(f"  {name}: {value}")
        print(f"  {body.strip()[:200]}")
