"""One limit holds across the workers of real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

import shmlimit as sl

from .conftest import Reply, Serve

STRATEGIES = ["fixed-window", "moving-window", "sliding-window-counter"]


def _workers(replies: list[Reply]) -> set[bytes]:
    return {reply.body.strip() for reply in replies}


def _statuses(replies: list[Reply]) -> dict[int, int]:
    statuses = [reply.status for reply in replies]
    return {status: statuses.count(status) for status in set(statuses)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flask_limiter_under_four_gunicorn_workers_admits_exactly_five(serve: Serve, strategy: str) -> None:
    server = serve("gunicorn", "with_flask_limiter:app", STRATEGY=strategy)
    replies = server.get_many(200)
    assert _statuses(replies) == {200: 5, 429: 195}
    assert len(_workers(replies)) > 1


@pytest.mark.parametrize("options", [["--preload"], ["--preload", "--threads", "4"]], ids=["processes", "threads"])
def test_flask_limiter_loaded_before_the_workers_are_forked_admits_exactly_five(
    serve: Serve, options: list[str]
) -> None:
    server = serve("gunicorn", "with_flask_limiter:app", *options)
    replies = server.get_many(200)
    assert _statuses(replies) == {200: 5, 429: 195}
    assert len(_workers(replies)) > 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slowapi_under_four_uvicorn_workers_admits_exactly_five(serve: Serve, strategy: str) -> None:
    server = serve("uvicorn", "with_slowapi:app", STRATEGY=strategy)
    replies = server.get_many(200)
    assert _statuses(replies) == {200: 5, 429: 195}
    assert len(_workers(replies)) > 1


def test_flask_limiter_tells_what_remains_for_all_workers_together(serve: Serve) -> None:
    server = serve("gunicorn", "with_flask_limiter:app")
    remaining = [server.get().headers["x-ratelimit-remaining"] for _ in range(6)]
    assert remaining == ["4", "3", "2", "1", "0", "0"]


@pytest.mark.parametrize(("server", "application"), [("gunicorn", "plain:wsgi_app"), ("uvicorn", "plain:asgi_app")])
def test_the_middleware_admits_exactly_five_under_four_workers(
    serve: Serve, directory: Path, server: str, application: str
) -> None:
    requests = sl.Calls("requests", 5, "1h", algorithm="fixed_window", align="first_use")
    sl.open(directory / "segment", sl.LimitSet("api", limits=[requests]))
    replies = serve(server, application).get_many(200)
    assert _statuses(replies) == {200: 5, 429: 195}
    for reply in replies:
        assert reply.headers["ratelimit-policy"] == '"requests";q=5;w=3600'
        if reply.status == 429:
            assert reply.headers["content-type"] == "application/problem+json"
            assert 0 < int(reply.headers["retry-after"]) <= 3600
