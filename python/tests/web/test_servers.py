"""Real servers behind a real nginx: each visitor has limits of its own, which hold across all workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

import shmlimit as sl

from .conftest import APPLICATIONS, COMMANDS, DEADLINE, Serve, Server, started, wait_until

REQUESTS = 5
# Debian keeps it where, by default, only root looks.
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

needs_uwsgi = pytest.mark.skipif(shutil.which("uwsgi_python3") is None, reason="needs uwsgi-plugin-python3")


def _needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}")


# The servers, each with its application and options.
SERVERS = [
    pytest.param("gunicorn", "wsgi_app", (), id="gunicorn sync"),
    pytest.param("gunicorn", "wsgi_app", ("--worker-class", "gthread", "--threads", "4"), id="gunicorn gthread"),
    pytest.param("gunicorn", "wsgi_app", ("--worker-class", "gevent"), marks=_needs("gevent"), id="gunicorn gevent"),
    pytest.param("uvicorn", "asgi_app", (), id="uvicorn"),
    pytest.param("hypercorn", "asgi_app", (), marks=_needs("hypercorn"), id="hypercorn"),
    pytest.param("uwsgi", "wsgi_app", (), marks=needs_uwsgi, id="uwsgi"),
    pytest.param("uwsgi", "wsgi_app", ("--lazy-apps", "--threads", "2"), marks=needs_uwsgi, id="uwsgi threads"),
]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Serve]:
    """Starts nginx in front of a server, as the guide shows."""
    if NGINX is None:
        pytest.skip("needs nginx")
    program = NGINX
    with ExitStack() as running:

        def start(behind: Server) -> Server:
            listener = running.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
            address = behind.address
            upstream = f"unix:{address}:" if isinstance(address, str) else f"{address[0]}:{address[1]}"
            configuration = tmp_path / "nginx.conf"
            configuration.write_text(f"""
                daemon off;
                {"user root;" if os.geteuid() == 0 else ""}
                pid {tmp_path}/nginx.pid;
                error_log stderr;
                events {{}}
                http {{
                    access_log off;
                    client_body_temp_path {tmp_path}/body;
                    proxy_temp_path {tmp_path}/proxy;
                    fastcgi_temp_path {tmp_path}/fastcgi;
                    uwsgi_temp_path {tmp_path}/uwsgi;
                    scgi_temp_path {tmp_path}/scgi;
                    server {{
                        listen 127.0.0.1:{listener.getsockname()[1]};
                        location / {{
                            proxy_pass http://{upstream};
                            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                        }}
                    }}
                }}
            """)
            # The way in which a master process of nginx hands listening sockets to its successor in an upgrade.
            variables = {"NGINX": f"{listener.fileno()};"}
            command = [program, "-c", str(configuration), "-p", str(tmp_path), "-e", "stderr"]
            front = running.enter_context(started(command, listener, variables, tmp_path / "nginx.log"))
            wait_until(lambda: front.get("/ready").status == 200, "nginx answers")
            return front

        yield start


def _declare(directory: Path) -> None:
    requests = sl.Calls("requests", REQUESTS, "1h", algorithm="fixed_window", align="first_use")
    sl.open(directory / "segment", sl.LimitSet("api", [requests], keyed=100))


@pytest.mark.parametrize("unix_socket", [False, True], ids=["TCP", "Unix"])
@pytest.mark.parametrize(("server", "application", "options"), SERVERS)
def test_each_visitor_of_nginx_has_a_limit_that_holds_across_workers(
    serve: Serve,
    nginx: Serve,
    directory: Path,
    server: str,
    application: str,
    options: tuple[str, ...],
    unix_socket: bool,
) -> None:
    _declare(directory)
    behind = serve(server, f"behind_a_proxy:{application}", *options, unix_socket=unix_socket, workers=2)
    front = nginx(behind)
    for visitor in ("127.0.0.2", "127.0.0.3"):
        # What a visitor writes into these headers counts for nothing.
        headers = [{}, {"X-Forwarded-For": "10.1.2.3"}, {"Forwarded": "for=10.1.2.4"}]
        statuses = [front.get("/", headers[number % 3], source=visitor).status for number in range(2 * REQUESTS)]
        assert statuses == [200] * REQUESTS + [429] * REQUESTS
    assert behind.get("/").status == 400, "it did not come through the proxy"


@needs_uwsgi
@pytest.mark.parametrize("options", [(), ("--single-interpreter",)], ids=["each its own", "one for all"])
def test_uwsgi_with_two_applications_needs_one_interpreter_and_is_told(
    directory: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    _declare(directory)
    log = tmp_path / "uwsgi.log"
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        [program, *command] = COMMANDS["uwsgi"](listener.fileno(), 2, "behind_a_proxy:wsgi_app")
        served = command[: command.index("--module")]
        mounted = [f"--mount=/{name}={APPLICATIONS}/behind_a_proxy.py" for name in ("one", "two")]
        variables = {"DIRECTORY": str(directory), "PYTHONPATH": str(APPLICATIONS)}
        command = [program, *served, *mounted, "--callable", "wsgi_app", *options]
        if not options:
            said = subprocess.run(
                [*command, "--need-app"],
                pass_fds=[listener.fileno()],
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            assert "ImportError: shmlimit works in one Python interpreter of a process" in said.stderr
            assert "uWSGI: --single-interpreter" in said.stderr
            return
        with started(command, listener, variables, log) as server:
            visitor = {"X-Forwarded-For": "10.1.2.3"}
            wait_until(lambda: server.get("/two/ready", visitor).status in (200, 429), "it answers")
            statuses = [server.get(path, visitor).status for path in ("/one", "/two") * REQUESTS]
    # The first of them was counted, too.
    assert sum(status == 200 for status in statuses) <= REQUESTS, log.read_text()
    assert statuses[-1] == 429
