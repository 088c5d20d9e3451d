"""Ten jobs of a new user, from the installation to a redeployment with one more set, each with the time that it took.

    python3 python/examples/ten_jobs.py

It needs what the installation needs: Linux, Python 3.10 or later, and Rust. Everything is installed
into a new environment and removed in the end; `--installed` uses the environment of this Python as it is.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
PACKAGE = EXAMPLES.parent
# How long to wait for whatever must happen in the end.
PATIENCE = 120.0

FRAMEWORKS = (
    *("django", "djangorestframework", "fastapi", "uvicorn", "gunicorn", "httpx"),
    *("celery", "sqlalchemy", "joblib", "pytest"),
)

FIRST_LIMIT = """
import sys, shmlimit as sl
limits = sl.open(sys.argv[1], sl.LimitSet("mail", [sl.Calls("sent", 3, "1h", algorithm="sliding_window")]))["mail"]
print(sum(bool(limits.check()) for _ in range(5)))
"""

TEST_OF_A_LIMIT = """
import shmlimit as sl

def test_the_second_call_of_an_hour_is_refused(shmlimit_segment, shmlimit_clock):
    limits = shmlimit_segment(sl.LimitSet("mail", [sl.Calls("sent", 1, "1h", algorithm="fixed_window")]))["mail"]
    assert limits.check()
    assert not limits.check()
    shmlimit_clock.advance(3600)
    assert limits.check()
"""

SITE = """
import shmlimit as sl
limits = sl.open({path!r}, [{sets}], version={version})

def application(environ, start_response):
    name = environ["PATH_INFO"].strip("/")
    admitted = name in limits and limits[name].check()
    start_response("200 OK" if admitted else "404 Not Found" if name not in limits else "429 Too Many Requests", [])
    return [b""]
"""


class Provider(http.server.BaseHTTPRequestHandler):
    """Stands in for a language model: every answer takes 120 tokens."""

    def do_POST(self) -> None:
        """Answers."""
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 100}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class NewUser:
    """What the jobs share: an environment, a directory for files, and one in shared memory."""

    def __init__(self, environment: Path, files: Path, memory: Path) -> None:
        self.programs = environment / "bin"
        self.files = files
        self.memory = memory

    def run(self, program: str, *arguments: object, **environment: str) -> str:
        """Runs a program of the environment; returns what it prints."""
        variables = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", **environment}
        command = [str(self.programs / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.files, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def serving(self, module: str, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """A server, until the end of the block; `{}` in the options is the descriptor that it listens on."""
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, open(self.files / "log", "wb") as log:
            arguments = [each.replace("{}", str(listener.fileno())) for each in options]
            server = subprocess.Popen(
                [self.programs / "python", "-m", module, *arguments],
                cwd=self.files,
                env={**os.environ, **environment},
                pass_fds=[listener.fileno()],
                stdout=log,
                stderr=log,
            )
            port = listener.getsockname()[1]
        try:
            yield server, port
        finally:
            server.terminate()
            server.wait()

    def install(self) -> str:
        """The package, and the frameworks of the other jobs."""
        subprocess.run([sys.executable, "-m", "venv", self.programs.parent], check=True)
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE, *FRAMEWORKS)
        return self.run("limitctl", "--version").strip()

    def first_limit(self) -> str:
        """Three processes that share three calls."""
        (self.files / "first.py").write_text(FIRST_LIMIT)
        admitted = [int(self.run("python", "first.py", self.memory / "mail.limits.d")) for _ in range(3)]
        expect(admitted == [3, 0, 0], admitted)
        return f"admitted {admitted} of 5 each"

    def _example(self, name: str, *expected: str) -> None:
        printed = self.run("python", EXAMPLES / name)
        expect(all(each in printed for each in expected), printed)

    def django(self) -> str:
        """The middleware, and the throttles of Django REST Framework, under four workers."""
        for name in ("django", "rest_framework"):
            self._example(f"web/with_{name}.py", "5 x 200", "35 x 429")
        return "5 of 40 requests each"

    def fastapi(self) -> str:
        """A dependency, under four workers."""
        self._example("web/with_fastapi.py", "5 x 200", "35 x 429")
        return "5 of 40 requests"

    def celery(self) -> str:
        """Tasks of four processes."""
        printed = self.run("python", EXAMPLES / "celery_workers.py")
        expect("30 tasks took" in printed, printed)
        return printed.splitlines()[0]

    def test(self) -> str:
        """A limit on a clock that stands still."""
        (self.files / "conftest.py").write_text('pytest_plugins = ["shmlimit.testing"]\n')
        (self.files / "test_mail.py").write_text(TEST_OF_A_LIMIT)
        return self.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mail.py").splitlines()[-1]

    def pools(self) -> str:
        """Pools of processes under each start method, and joblib's."""
        self._example("multiprocessing_pool.py", "fork: 12 of 200", "spawn: 12 of 200", "forkserver: 12 of 200")
        self._example("joblib_loky.py", "40 queries ran")
        return "12 of 200 under each start method"

    def gateway(self) -> str:
        """Two workers in front of a provider; what a request did not use comes back."""
        provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        limits = self.memory / "provider.limits"
        served = ("--fd", "{}", "--workers", "2", "--app-dir", str(EXAMPLES), "llm_gateway:app")
        address = f"http://127.0.0.1:{provider.server_address[1]}"
        with self.serving("uvicorn", *served, LIMITS=str(limits), PROVIDER=address) as (_, port):
            question = json.dumps({"messages": [{"role": "user", "content": "How many?"}], "max_tokens": 4000}).encode()
            for _ in range(20):
                expect(ask(port, "/v1/chat/completions", question) == 200, "no answer")
            until(lambda: self._left(limits)["tokens"] == 200_000 - 20 * 120, "all is settled")
            self.inspected = self.run("limitctl", "inspect", limits), self.run("limitctl", "doctor", limits)
        provider.shutdown()
        return "20 requests reserved 4,000 tokens each, and paid 120"

    def _left(self, limits: Path) -> dict[str, int]:
        # What all tenants share is the same for any of them.
        code = (
            "import sys, json, shmlimit as sl; l = sl.open(sys.argv[1])['provider'].peek({'tokens': 0}, key='any'); "
            "print(json.dumps({n: int(v.remaining) for n, v in l.items()}))"
        )
        return dict(json.loads(self.run("python", "-c", code, limits)))

    def inspect(self) -> str:
        """What `limitctl` said while the gateway ran."""
        inspected, examined = self.inspected
        expect("set provider" in inspected and "in_flight" in inspected, inspected)
        expect("0 errors" in examined, examined)
        return examined.strip().splitlines()[-1]

    def redeploy(self) -> str:
        """One more set and a changed number, by HUP, while requests come in."""
        site = self.files / "site_of_mine.py"
        path = str(self.memory / "site.limits.d/")

        def release(version: int, **capacities: int) -> None:
            sets = (
                f'sl.LimitSet("{name}", [sl.Calls("calls", {n}, "1h", algorithm="fixed_window")])'
                for name, n in capacities.items()
            )
            site.write_text(SITE.format(path=path, sets=", ".join(sets), version=version))

        release(1, chat=50)
        answers: Counter[int] = Counter()
        served = ("--bind", "fd://{}", "--workers", "4", "--graceful-timeout", "5", "site_of_mine:application")
        with self.serving("gunicorn", *served) as (server, port):
            is_over = threading.Event()

            def load() -> None:
                while not is_over.is_set():
                    answers[ask(port, "/chat")] += 1

            loading = threading.Thread(target=load)
            loading.start()
            until(lambda: answers[200] >= 20, "the site answers")
            release(2, chat=60, mail=2)
            server.send_signal(signal.SIGHUP)
            until(lambda: ask(port, "/mail") == 200, "the new release answers")
            until(lambda: answers[200] >= 60 and answers[429] > 0, "the new limit is reached")
            # Workers of the former release may still answer some.
            until(lambda: all(ask(port, "/mail") == 429 for _ in range(8)), "the limit of the new set is reached")
            is_over.set()
            loading.join()
        expect(answers.keys() <= {200, 429}, answers)
        expect(answers[200] == 60, answers)
        return f"{answers.total()} requests, none lost: {answers[200]} admitted over both releases"


def ask(port: int, path: str, body: bytes | None = None) -> int:
    """The status of a request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            # If a client leaves before the end, what it reserved stays charged: nobody knows what the request cost.
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def expect(is_so: bool, otherwise: object) -> None:
    """Ends the program if something is not as expected."""
    if not is_so:
        raise SystemExit(f"not as expected: {otherwise}")


def until(is_so: Callable[[], bool], what: str) -> None:
    """Waits until servers have done something."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        expect(time.monotonic() < deadline, f"waited in vain until {what}")
        time.sleep(0.02)


def main() -> None:
    """Does the jobs in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", action="store_true", help="use what is installed beside this Python")
    installed: bool = parser.parse_args().installed
    files = Path(tempfile.mkdtemp(prefix="ten-jobs-"))
    memory = Path(tempfile.mkdtemp(prefix="ten-jobs-", dir="/dev/shm"))
    user = NewUser(Path(sys.prefix) if installed else files / "environment", files, memory)
    jobs: list[tuple[str, Callable[[], str]]] = [
        ("installs", (lambda: user.run("limitctl", "--version").strip()) if installed else user.install),
        ("shares a first limit", user.first_limit),
        ("limits Django, and its REST framework", user.django),
        ("limits FastAPI", user.fastapi),
        ("limits tasks of Celery", user.celery),
        ("tests a limit with pytest", user.test),
        ("limits multiprocessing and joblib", user.pools),
        ("puts a gateway before a language model", user.gateway),
        ("looks with limitctl", user.inspect),
        ("redeploys with one more set", user.redeploy),
    ]
    try:
        for number, (what, job) in enumerate(jobs, 1):
            begun = time.monotonic()
            said = job()
            print(f"{number:2}. {what:40}{time.monotonic() - begun:7.1f} s   {said}", flush=True)
    finally:
        shutil.rmtree(files)
        shutil.rmtree(memory)


if __name__ == "__main__":
    main()
