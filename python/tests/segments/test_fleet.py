"""Limits that hosts share: how they are declared, what a host says about its leases, and who asks the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fleet_worker
import httpx
import pytest
from observing import output_of, queued, run_role, snapshot_of, until

import shmlimit as sl
from shmlimit.asgi import LimitMiddleware as ASGIMiddleware
from shmlimit.http import refusal_response
from shmlimit.results import Acquisition
from shmlimit.wsgi import LimitMiddleware as WSGIMiddleware

WORKER = Path(fleet_worker.__file__)
SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
needs_server = pytest.mark.skipif(SERVER is None, reason="no redis-server")
# Some tests are about forking while the thread runs; Python 3.12 and later warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def free_port() -> int:
    """A port on which no process listens, below those that the kernel gives to connections of other tests."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Store:
    """A server on a loopback port, which can be stopped, and started again with its data."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert SERVER is not None
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._directory, "appendonly": "yes", "save": ""}
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen([SERVER, *arguments], stdout=subprocess.DEVNULL)
        until(self._answers, "the store")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A running store; its data is gone after the test."""
    directory = tmp_path / "store"
    directory.mkdir()
    store = Store(directory)
    store.start()
    yield store
    store.stop()


def tokens(**fleet: object) -> sl.LimitSet:
    """A window of a day, so that what it admits can be counted."""
    shared = {"key": "org/tokens", **fleet}
    return sl.LimitSet("openai", [sl.Rate("tokens", 1000, "24h", algorithm="fixed_window", fleet=shared)])


def today() -> int:
    """The day in UTC, with which the window ends."""
    return int(time.time() // 86400)


def lease_of(segment: sl.Segment) -> dict[str, Any]:
    (limit,) = snapshot_of(segment, "openai")["limits"]
    lease: dict[str, Any] = limit["lease"]
    return lease


def state_of(segment: sl.Segment) -> dict[str, Any]:
    state = segment.store_thread
    assert state is not None
    return state


def is_admitted(segment: sl.Segment) -> bool:
    return bool(segment["openai"].try_acquire({"tokens": 1}))


def unreachable() -> str:
    """The URL of a store that does not exist."""
    return f"redis://127.0.0.1:{free_port()}"


def test_a_fleet_is_declared_alike_in_code_and_toml(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(
        """
        [fleet]
        url = "redis://127.0.0.1:1/0"
        host = "web-1"
        [[set]]
        name = "openai"
        [[set.limit]]
        name = "tokens"
        kind = "rate"
        capacity = 1000
        window = "24h"
        algorithm = "fixed_window"
        fleet = { key = "org/tokens", lease = "4s", outage = "safe", safe = 0.25 }
        """
    )
    declared = tokens(lease="4s", outage="safe", safe=0.25)
    fleet = {"url": "redis://127.0.0.1:1/0", "host": "web-1"}
    of_code = sl.open(tmp_path / "code.limits", declared, fleet=fleet, ask_store=False)
    of_file = sl.open(tmp_path / "file.limits", file, ask_store=False)
    assert of_code.declaration() == of_file.declaration()
    assert of_code.declaration()["fleet"] == fleet
    shared = of_code.snapshot()["fleet"]
    assert (shared["url"], shared["host_name"], shared["duty"]) == (*fleet.values(), None)
    assert lease_of(of_code)["outage"] == "safe"
    assert of_code.declaration()["set"][0]["limit"][0]["fleet"]["safe"] == 0.25


def test_how_long_units_are_leased_for_follows_from_the_limit_unless_it_is_declared(tmp_path: Path) -> None:
    def lengths(name: str, **fleet: object) -> tuple[str, float]:
        shared = {"key": "org/calls", **fleet}
        calls = sl.Calls("calls", 6000, 60, burst=200, fleet=shared)
        segment = sl.open(
            tmp_path / name, sl.LimitSet("openai", [calls]), fleet={"url": unreachable()}, ask_store=False
        )
        return segment.declaration()["set"][0]["limit"][0]["fleet"]["lease"], lease_of(segment)["length"]

    assert lengths("by_default") == ("auto", 1.0)
    assert lengths("auto", lease="auto") == ("auto", 1.0)
    assert lengths("declared", lease=timedelta(seconds=4)) == ("4s", 4.0)


def test_a_burst_that_is_too_small_for_the_rate_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = sl.Calls("calls", 6000, 60, burst=10, fleet={"key": "org/calls"})
    sl.open(tmp_path / "limits", sl.LimitSet("openai", [calls]), fleet={"url": unreachable()}, ask_store=False)
    assert "about 74 % of the rate" in caplog.text
    assert "at least 14" in caplog.text


@pytest.mark.parametrize(
    ("url", "shared", "message"),
    [
        ("redis://user:secret@127.0.0.1", {}, "SHMLIMIT_FLEET_PASSWORD"),
        ("http://127.0.0.1", {}, "write one of redis"),
        ("redis://127.0.0.1", {"outage": "panic"}, "panic"),
        ("redis://127.0.0.1", {"lease": "soon"}, "soon"),
        ("redis://127.0.0.1", {"safe": 50}, "outage"),
        ("redis://127.0.0.1", {"outage": "safe", "safe": 1001}, "1000"),
        (None, {}, "fleet"),
    ],
)
def test_what_cannot_be_shared_is_an_error(
    tmp_path: Path, url: str | None, shared: dict[str, Any], message: str
) -> None:
    with pytest.raises(sl.DeclarationError, match=message) as raised:
        sl.open(tmp_path / "bad.limits", tokens(**shared), fleet=url)
    assert "secret" not in str(raised.value)


def test_limits_that_are_shared_without_a_version_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable(), ask_store=False)
    (record,) = [record for record in caplog.records if "without a version" in record.getMessage()]
    assert (record.name, record.levelname) == ("shmlimit", "WARNING")
    caplog.clear()
    sl.open(tmp_path / "versioned.limits", tokens(), fleet=unreachable(), ask_store=False, version=1)
    assert not caplog.records


def test_without_a_store_there_is_no_thread(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "local.limits", sl.LimitSet("mail", [sl.Calls("sent", 1, "1h")]))
    assert segment.store_thread is None


def test_a_process_that_does_not_ask_refuses_for_want_of_a_lease(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable(), ask_store=False)
    assert segment.store_thread is None
    refusal = segment["openai"].try_acquire({"tokens": 1})
    assert not refusal
    assert (refusal.reason, refusal.binding, refusal.retry_after) == ("lease_pending", "tokens", None)
    assert lease_of(segment)["counts"]["requests"] == 0


def test_a_store_that_is_out_is_a_state_and_no_error(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable())
    assert not is_admitted(segment)
    until(lambda: state_of(segment)["problem"] and lease_of(segment)["problem"], "a problem")
    state = state_of(segment)
    assert state["running"]
    assert (state["cause"], lease_of(segment)["problem"]) == ("refused", "refused")
    assert "nothing listens at its address" in state["problem"]
    assert lease_of(segment)["refusing"]
    assert state["failures"] > 0
    assert state["round_trips"] == 0
    assert segment["openai"].try_acquire({"tokens": 1}).reason == "store_out"


@pytest.mark.parametrize("reason", ["lease_pending", "store_out"])
def test_clients_are_told_that_the_service_and_not_they_are_the_cause(tmp_path: Path, reason: str) -> None:
    calls = sl.Calls("calls", 1000, "24h", algorithm="fixed_window", fleet={"key": "org/calls"})
    segment = sl.open(
        tmp_path / "host.limits",
        sl.LimitSet("api", [calls]),
        fleet=unreachable(),
        version=1,
        ask_store=reason == "store_out",
    )
    limits = segment["api"]
    until(lambda: limits.try_acquire().reason == reason, "the reason")
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    environment = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
    list(WSGIMiddleware(lambda *_: [], limits)(environment, lambda *head: begun.append(head)))

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(ASGIMiddleware(_never_called, limits))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return await client.get("/")

    answered = asyncio.run(answer())
    refused = refusal_response(limits.try_acquire(), limits)
    assert (refused.status, begun[0][0][:3], answered.status_code) == (503, "503", 503)
    for headers in (dict(refused.headers), dict(begun[0][1]), answered.headers):
        assert {name.lower(): value for name, value in headers.items()}["retry-after"] == "1"


async def _never_called(*_: object) -> None:
    raise AssertionError("the request was not refused")


def test_a_wrong_password_file_is_logged_and_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHMLIMIT_FLEET_PASSWORD_FILE", str(tmp_path / "missing"))
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable())
    state = state_of(segment)
    assert not state["running"]
    assert "SHMLIMIT_FLEET_PASSWORD_FILE" in state["problem"]
    assert "SHMLIMIT_FLEET_PASSWORD_FILE" in caplog.text
    assert not is_admitted(segment)


def test_the_thread_lasts_as_long_as_a_handle(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable())
    watching = sl.open(segment.path, ask_store=False)
    limits = segment["openai"]
    segment.close()
    limits.try_acquire({"tokens": 1})
    until(lambda: lease_of(watching)["counts"]["failures"], "attempts by what the handle keeps")
    assert watching.snapshot()["fleet"]["duty"]["pid"] == os.getpid()
    del limits, segment
    until(lambda: watching.snapshot()["fleet"]["duty"] is None, "the end of the thread")


def test_a_forked_child_has_a_thread_of_its_own(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable())
    child = os.fork()
    if child == 0:
        os._exit(0 if state_of(segment)["running"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert state_of(segment)["running"]


@needs_server
def test_hosts_share_a_limit_while_workers_and_the_store_are_killed(tmp_path: Path, store: Store) -> None:
    hosts = [sl.open(tmp_path / f"{name}.limits", tokens(), fleet=store.url, ask_store=False) for name in "ab"]
    begun = today()
    workers = [run_role(WORKER, host.path) for host in hosts for _ in range(2)]
    try:
        for host in hosts:
            until(lambda host=host: snapshot_of(host, "openai")["counts"]["admitted"] > 0, "an admission")
        duty = hosts[0].snapshot()["fleet"]["duty"]["pid"]
        os.kill(duty, signal.SIGKILL)
        until(lambda: (hosts[0].snapshot()["fleet"]["duty"] or {}).get("pid") not in (None, duty), "another with duty")
        store.stop()
        until(lambda: all(lease_of(host)["problem"] for host in hosts), "the outage")
        store.start()
        until(lambda: not any(lease_of(host)["problem"] for host in hosts), "the store's answers")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            output_of(worker)
    admitted = [snapshot_of(host, "openai")["counts"]["admitted"] for host in hosts]
    assert all(admitted)
    # Nothing but the end of a day renews the window.
    assert sum(admitted) <= 1000 * (1 + today() - begun)


@needs_server
def test_a_directory_is_one_host_to_the_store(tmp_path: Path, store: Store) -> None:
    def of(name: str) -> sl.LimitSet:
        shared = {"key": f"org/{name}", "lease": "1s"}
        return sl.LimitSet(name, [sl.Rate("tokens", 1000, "24h", algorithm="fixed_window", fleet=shared)])

    path = tmp_path / "app.limits.d"
    names = ["chat", "mail", "search"]
    segment = sl.open(f"{path}/", [of(name) for name in names], fleet=store.url, version=1)
    for name in names:
        assert segment[name].try_acquire({"tokens": 1})
    with commands_of(store) as ask:
        assert ask("CLIENT LIST").count("fd=") == 2, "its own, and that of the test"
    # A worker of the next release declares one more set, and this process continues.
    both = sl.open(f"{path}/", [of(name) for name in [*names, "images"]], fleet=store.url, version=1)
    assert both["images"].try_acquire({"tokens": 1})
    assert segment["chat"].try_acquire({"tokens": 1})
    both.close()
    segment.close()


@contextlib.contextmanager
def commands_of(store: Store) -> Iterator[Callable[[str], str]]:
    """Sends commands to a store."""
    with (
        socket.create_connection(("127.0.0.1", store.port), timeout=60) as connection,
        connection.makefile("rb") as lines,
    ):

        def ask(command: str) -> str:
            connection.sendall(command.encode() + b"\r\n")
            length = int(lines.readline()[1:])
            return lines.read(length + 2).decode()

        yield ask


@needs_server
def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=store.url, version=1)
    until(lambda: is_admitted(segment), "a lease")
    store.stop()
    # The lease is spent or has ended, so the store is asked again and again.
    until(lambda: not is_admitted(segment) and state_of(segment)["failures"] > 3, "the outage")
    store.start()
    until(lambda: is_admitted(segment) and state_of(segment)["problem"] is None, "the store's answers")
    records = [record for record in caplog.records if record.name == "shmlimit"]
    assert {record.levelname for record in records} == {"WARNING"}
    # A store that is slow to answer at first may count as out once more. Each outage is logged once when it begins and
    # once when it ends, however often the store was asked meanwhile.
    assert len(records) % 2 == 0
    assert len(records) <= 2 * state_of(segment)["failures"] - 4
    for begun, ended in zip(records[::2], records[1::2], strict=True):
        assert begun.getMessage().startswith(f"{segment.path}: no leases come from the store: ")
        assert f"the store at {store.url} answers again" in ended.getMessage()


@needs_server
def test_places_of_two_hosts_have_rising_fencing_numbers(tmp_path: Path, store: Store) -> None:
    jobs = sl.LimitSet("jobs", [sl.Concurrency("places", 4, fleet={"key": "org/places"})])
    hosts = [sl.open(tmp_path / f"{name}.limits", jobs, fleet=store.url) for name in "ab"]
    with hosts[0]["jobs"].acquire(timeout=60) as first, hosts[1]["jobs"].acquire(timeout=60) as second:
        numbers = first.fleet_fencing_number, second.fleet_fencing_number
        assert 0 < (numbers[0] or 0) < (numbers[1] or 0), numbers


@pytest.fixture
def cold(tmp_path: Path, store: Store) -> Iterator[tuple[sl.Segment, Callable[[], None]]]:
    """A segment whose lease has ended while the process on duty is stopped, and what lets that process continue."""
    declared = tokens(lease="1s", cold_wait="10s")
    segment = sl.open(tmp_path / "host.limits", declared, fleet=store.url, version=1, ask_store=False)
    worker = run_role(WORKER, segment.path, "idle")
    try:
        until(lambda: lease_of(segment)["counts"]["grants"], "the first lease")
        worker.send_signal(signal.SIGSTOP)
        os.waitpid(worker.pid, os.WUNTRACED)
        until(lambda: lease_of(segment)["left"] == 0, "the end of the lease")
        yield segment, lambda: worker.send_signal(signal.SIGCONT)
    finally:
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        output_of(worker)


ONE = {"tokens": 1}


@needs_server
@pytest.mark.parametrize(
    "ask",
    [
        lambda limits: limits.try_acquire(ONE),
        lambda limits: limits.check(ONE),
        lambda limits: limits.acquire(ONE, timeout=0),
        lambda limits: sl.Pool([limits]).try_acquire(ONE),
        lambda limits: sl.Pool([limits]).acquire(ONE, timeout=0),
        lambda limits: sl.Pool([limits], failover=True).acquire(ONE, timeout=60),
    ],
)
def test_other_threads_run_while_a_first_request_waits_for_the_store(
    cold: tuple[sl.Segment, Callable[[], None]], ask: Callable[[sl.SetHandle], object]
) -> None:
    segment, go_on = cold
    limits = segment["openai"]
    asked = threading.Event()
    # Only runs once the asking thread lets it: otherwise, the interpreter would make the threads take turns.
    other = threading.Thread(target=lambda: (asked.wait(), go_on()))
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        asked.set()
        assert ask(limits)
    finally:
        sys.setswitchinterval(interval)
        other.join()


@needs_server
@pytest.mark.parametrize(
    "acquire",
    [
        lambda limits: limits.acquire_async(ONE, timeout=0),
        lambda limits: sl.Pool([limits]).acquire_async(ONE, timeout=0),
        lambda limits: sl.Pool([limits], failover=True).acquire_async(ONE, timeout=60),
    ],
)
def test_other_tasks_run_while_a_first_request_waits_for_the_store(
    cold: tuple[sl.Segment, Callable[[], None]], acquire: Callable[[sl.SetHandle], Acquisition]
) -> None:
    segment, go_on = cold

    async def run() -> None:
        asking = asyncio.ensure_future(acquire(segment["openai"]))
        while not asking.done() and not queued(segment, "openai"):  # noqa: ASYNC110 - nobody tells this task
            await asyncio.sleep(0)
        go_on()
        (await asking).release()

    asyncio.run(run())


def test_a_segment_that_is_closed_can_be_removed(tmp_path: Path) -> None:
    segment = sl.open(tmp_path / "host.limits", tokens(), fleet=unreachable())
    segment.close()
    sl.remove(tmp_path / "host.limits")


def tenants(**shared: object) -> sl.LimitSet:
    """A window of a day for each tenant."""
    limit = sl.Calls("requests", 10, "24h", algorithm="fixed_window", fleet={"key": "org/tenants", **shared})
    return sl.LimitSet("tenants", [limit], keyed=100)


@needs_server
def test_a_first_unit_of_each_key_needs_no_answer_unless_none_is_unleased(tmp_path: Path, store: Store) -> None:
    # If nobody asks the store, only unleased units are admitted.
    alone = sl.open(tmp_path / "alone", tenants(unleased=2), fleet=unreachable(), version=1, ask_store=False)
    admitted = [bool(alone["tenants"].check(key="acme")) for _ in range(4)]
    assert admitted == [True, True, False, False]
    exact = sl.open(
        tmp_path / "exact",
        tenants(unleased=0, cold_wait="0s"),
        fleet=unreachable(),
        version=1,
        ask_store=False,
    )
    refused = exact["tenants"].check(key="acme")
    assert not refused
    assert refused.reason == "lease_pending"
    # With a store, all hosts together admit what there is, and the next refusal says how long there is no more.
    hosts = [
        sl.open(tmp_path / name, tenants(unleased=0, cold_wait="10s", lease="500ms"), fleet=store.url, version=1)
        for name in ("first", "second")
    ]
    begun = today()
    counts = [sum(bool(host["tenants"].check(key="acme")) for _ in range(20)) for host in hosts]
    assert 1 <= sum(counts) <= 10 * (1 + today() - begun), counts
    # This does not affect another tenant.
    assert hosts[1]["tenants"].check(key="globex")
    for segment in (alone, exact, *hosts):
        segment.close()


@needs_server
def test_the_example_of_tenants_over_hosts_shows_what_it_says(store: Store) -> None:
    example = Path(__file__).parents[2] / "examples" / "tenants_over_hosts.py"
    code, output, errors = output_of(run_role(example, store.url))
    assert code == 0, errors
    counts = {line.split(":")[0]: int(line.split()[1]) for line in output.splitlines()}
    assert set(counts) == {"acme", "globex"}
    assert all(50 <= count <= 100 for count in counts.values()), output
