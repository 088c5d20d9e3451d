"""Django's middleware and the throttles of Django REST Framework, under its own handlers and real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

import shmlimit as sl

from ..conftest import Serve, wait_until

SERVERS = [("gunicorn", "django_site:wsgi_app"), ("uvicorn", "django_site:asgi_app")]


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_a_site_admits_exactly_five_under_four_workers(
    serve: Serve, directory: Path, server: str, application: str
) -> None:
    requests = sl.Calls("requests", 5, "1h", algorithm="fixed_window", align="first_use")
    sl.open(directory / "segment", sl.LimitSet("api", limits=[requests]))
    replies = serve(server, application).get_many(200)
    statuses = [reply.status for reply in replies]
    assert (statuses.count(200), statuses.count(429)) == (5, 195)
    for reply in replies:
        assert reply.headers["ratelimit-policy"] == '"requests";q=5;w=3600'
        if reply.status == 429:
            assert reply.headers["content-type"] == "application/problem+json"
            assert 0 < int(reply.headers["retry-after"]) <= 3600


@pytest.mark.parametrize(("server", "application", "path"), [(*SERVERS[0], "/stay"), (*SERVERS[1], "/stay_async")])
def test_a_client_that_leaves_in_the_middle_of_the_body_gives_its_place_back(
    serve: Serve, directory: Path, server: str, application: str, path: str
) -> None:
    limits = sl.open(directory / "segment", sl.LimitSet("api", limits=[sl.Concurrency("in_flight", 1)]))["api"]
    running = serve(server, application)
    connection = running.connect()
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.readline().strip().isdigit()
    assert not limits.try_acquire()
    assert running.get().status == 429
    response.close()
    connection.close()
    wait_until(lambda: running.get().status == 200, "the place is free again")
    wait_until(lambda: running.get().status == 200, "that of a whole response is free as well")


@pytest.mark.parametrize(("server", "application"), SERVERS)
def test_a_throttle_of_rest_framework_admits_exactly_five_under_four_workers(
    serve: Serve, directory: Path, server: str, application: str
) -> None:
    sl.open(directory / "segment", sl.LimitSet("api", limits=[sl.Concurrency("in_flight", 100)]))
    replies = serve(server, application).get_many(200, "/throttled")
    statuses = [reply.status for reply in replies]
    assert (statuses.count(200), statuses.count(429)) == (5, 195)
    for reply in replies:
        if reply.status == 429:
            assert 3500 < int(reply.headers["retry-after"]) <= 3600
