"""What happens to clients when there are more of them than rows, compared with a memory that is not bounded."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from limits import RateLimitItemPerDay, RateLimitItemPerHour, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import MemoryStorage
from limits.strategies import STRATEGIES, FixedWindowRateLimiter
from werkzeug.test import create_environ, run_wsgi_app

from shmlimit.limits_storage import ShmStorage, TableFull

NAMES = sorted(STRATEGIES)

QUICKSTART = ("200 per day", "50 per hour")
PAGES = 20
VISITORS = 5_000
# With SHMLIMIT_THOROUGH=1, each visitor sees all pages, which takes minutes.
PAGES_OF_A_VISITOR = PAGES if os.environ.get("SHMLIMIT_THOROUGH") == "1" else 2


class Site:
    """Flask-Limiter's quickstart, with more pages."""

    def __init__(self, storage_uri: str, default_limits: Sequence[str] = QUICKSTART, **options: Any) -> None:
        self.app = Flask("site")
        self.limiter = Limiter(
            get_remote_address,
            app=self.app,
            default_limits=list(default_limits),
            storage_uri=storage_uri,
            headers_enabled=True,
            **options,
        )
        for page in range(PAGES):
            self.app.add_url_rule(f"/{page}", f"page {page}", lambda: "ok")

    def visit(self, address: str, page: int) -> tuple[int, dict[str, str]]:
        environ = create_environ(f"/{page}", environ_overrides={"REMOTE_ADDR": address})
        _, status, headers = run_wsgi_app(self.app.wsgi_app, environ)
        return int(status.split()[0]), {name: value for name, value in headers if "imit" in name or "Retry" in name}


def _address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256}"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", ["", "?max_keys=2000"], ids=["by default", "and a table of 2,000 rows"])
def test_no_visitor_of_a_site_is_refused_who_would_not_be_with_unbounded_memory(directory: Path, options: str) -> None:
    ours, theirs = Site(f"shm://{directory}/limits{options}"), Site("memory://")
    limited = "192.0.2.1"
    for number in range(60):
        both = [site.visit(limited, 3) for site in (ours, theirs)]
        assert [status for status, _ in both] == 2 * [429 if number >= 50 else 200]
        assert both[0][1]["X-RateLimit-Remaining"] == both[1][1]["X-RateLimit-Remaining"] == str(max(49 - number, 0))
    for visitor in range(VISITORS):
        for turn in range(PAGES_OF_A_VISITOR):
            page = (7 * visitor + turn) % PAGES
            there = theirs.visit(_address(visitor), page)
            here = ours.visit(_address(visitor), page)
            told = [(status, headers["X-RateLimit-Remaining"]) for status, headers in (here, there)]
            assert told == 2 * [(200, "49")], f"page {page} of visitor {visitor}"
        if visitor % 100 == 0:
            status, headers = ours.visit(limited, 3)
            assert (status, headers["X-RateLimit-Remaining"]) == (429, "0"), f"after visitor {visitor}"
            assert 0 < int(headers["Retry-After"]) <= 3600
    theirs.limiter.storage.timer.cancel()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_new_keys_push_out_one_another_and_no_limited_one(directory: Path, name: str) -> None:
    limiter = STRATEGIES[name](ShmStorage(f"shm://{directory}/limits?max_keys=400"))
    item, once = RateLimitItemPerDay(5), RateLimitItemPerDay(1)
    for number in range(40):
        assert all(limiter.hit(item, f"limited {number}") for _ in range(5))
        assert limiter.hit(once, f"limited {number}")
    for number in range(4_000):
        assert limiter.hit(item, f"visitor {number}")
    for number in range(40):
        assert not limiter.hit(item, f"limited {number}")
        assert not limiter.hit(once, f"limited {number}")
        assert limiter.get_window_stats(item, f"limited {number}").remaining == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_table_full_of_limited_keys_is_an_error_and_not_a_refusal(directory: Path, name: str) -> None:
    item = RateLimitItemPerDay(1)
    for wrapped, error in [(False, TableFull), (True, StorageError)]:
        limiter = STRATEGIES[name](ShmStorage(f"shm://{directory}/{wrapped}?max_keys=4", wrap_exceptions=wrapped))
        for number in range(32):
            assert limiter.hit(item, f"key {number}")
        with pytest.raises(error, match="max_keys"):
            limiter.hit(item, "another")
        assert not limiter.hit(item, "key 0"), "it is limited"


def test_flask_limiter_falls_back_where_a_table_is_full_of_limited_keys(directory: Path) -> None:
    uri = f"shm://{directory}/limits?max_keys=4"
    site = Site(uri, default_limits=["1 per day"], in_memory_fallback_enabled=True)
    for number in range(40):
        assert site.visit(_address(number), 0)[0] == HTTPStatus.OK
    assert site.visit(_address(39), 0)[0] == HTTPStatus.TOO_MANY_REQUESTS


@pytest.mark.parametrize("name", NAMES)
def test_a_key_refused_by_a_table_that_refuses_is_told_to_be_limited(directory: Path, name: str) -> None:
    limiter = STRATEGIES[name](ShmStorage(f"shm://{directory}/limits?max_keys=4&when_full=refuse"))
    item = RateLimitItemPerHour(50)
    refused = [f"key {number}" for number in range(40) if not limiter.hit(item, f"key {number}")]
    assert 0 < len(refused) <= 8
    for key in refused:
        stats = limiter.get_window_stats(item, key)
        assert stats.remaining == 0
        assert 3590 < stats.reset_time - time.time() <= 3600
        assert not limiter.test(item, key)
    limiter.clear(item, refused[0])
    assert limiter.get_window_stats(item, refused[0]).remaining == 50


def test_a_key_is_told_to_be_limited_no_longer_than_a_window(directory: Path) -> None:
    limiter = FixedWindowRateLimiter(ShmStorage(f"shm://{directory}/limits?max_keys=4&when_full=refuse"))
    item = RateLimitItemPerSecond(1)
    refused = next(key for key in map(str, range(100)) if not limiter.hit(item, key))
    deadline = time.monotonic() + 120
    while not limiter.hit(item, refused):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert limiter.get_window_stats(item, refused).remaining == 0


def test_what_is_refused_counts_in_a_fixed_window_as_it_does_in_memory(directory: Path, memory: MemoryStorage) -> None:
    item = RateLimitItemPerDay(10)
    for limiter in (FixedWindowRateLimiter(ShmStorage(f"shm://{directory}/limits")), FixedWindowRateLimiter(memory)):
        assert limiter.hit(item, "ann", cost=5)
        assert not limiter.hit(item, "ann", cost=6)
        assert not limiter.hit(item, "ann")
        assert not limiter.hit(item, "bob", cost=11)
        assert not limiter.hit(item, "bob")


def test_it_warns_once_before_a_table_is_full_and_once_when_it_evicts(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = FixedWindowRateLimiter(ShmStorage(f"shm://{directory}/limits?max_keys=200"))
    item, other = RateLimitItemPerDay(5), RateLimitItemPerHour(5)
    with caplog.at_level(logging.WARNING, "shmlimit"):
        for number in range(100):
            limiter.hit(item, f"early {number}")
        assert caplog.messages == []
        for number in range(2_000):
            limiter.hit(item, f"visitor {number}")
            limiter.hit(other, f"visitor {number}")
    full, evicted = caplog.messages
    assert "rows are in use" in full
    assert "evicted" in evicted
    assert all("max_keys=" in message for message in caplog.messages)


def test_all_files_have_room_in_the_memory_of_a_container(directory: Path) -> None:
    storage = ShmStorage(f"shm://{directory}/limits")
    rows = []
    for number in range(1, 25):
        name = NAMES[number % 3]
        assert STRATEGIES[name](storage).hit(RateLimitItemPerDay(number), "ann")
    files = list((directory / "limits").iterdir())
    assert len(files) == 24
    assert sum(file.stat().st_blocks * 512 for file in files) < 60 * 2**20
    other = ShmStorage(f"shm://{directory}/others")
    for number in (50, 200):
        FixedWindowRateLimiter(other).hit(RateLimitItemPerDay(number), "ann")
        [limits] = other._directory.known(f"fixed-window.{number}-per")
        usage = limits.table_usage()
        assert usage is not None
        rows.append(usage["rows"])
    # Enough for 5,000 clients of 20 pages.
    assert min(rows) > 100_000


def test_storages_that_find_other_room_share_a_file(directory: Path) -> None:
    one = ShmStorage(f"shm://{directory}/limits")
    item = RateLimitItemPerDay(5)
    one.incr(item.key_for("ann"), item.get_expiry())
    one.incr("of another form", 60)
    # It would find less room now.
    other = ShmStorage(f"shm://{directory}/limits")
    assert other.incr(item.key_for("ann"), item.get_expiry()) == 2
    assert len(list((directory / "limits").iterdir())) == 2
