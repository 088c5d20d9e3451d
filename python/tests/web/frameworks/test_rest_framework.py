"""The throttles for Django REST Framework, compared with its own, asked through its client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import path
from rest_framework import throttling as theirs
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

import shmlimit as sl
from shmlimit import rest_framework as ours
from shmlimit.django import LimitMiddleware


class _Named:
    """Someone who is logged in."""

    is_authenticated = True

    def __init__(self, number: int) -> None:
        self.pk = number


class View(APIView):
    """Throttled by whatever a test sets here."""

    def get(self, _: Request) -> Response:
        return Response("done")


urlpatterns = [path("", View.as_view())]


@pytest.fixture(autouse=True)
def throttles(directory: Path) -> Iterator[None]:
    """Settings that name a directory of the test's own."""
    settings.SHMLIMIT_THROTTLES = {"directory": str(directory / "throttles"), "max_keys": 100}
    ours._directory.cache_clear()
    yield
    ours._directory.cache_clear()
    del settings.SHMLIMIT_THROTTLES


def _throttles(module: Any, rates: dict[str, str | None]) -> list[type[Any]]:
    return [
        type("Anon", (module.AnonRateThrottle,), {"THROTTLE_RATES": rates}),
        type("User", (module.UserRateThrottle,), {"THROTTLE_RATES": rates}),
        type("Scoped", (module.ScopedRateThrottle,), {"THROTTLE_RATES": rates}),
    ]


def _decisions(throttle: type[Any], view: Any, people: list[_Named | None]) -> list[bool]:
    decisions = []
    for person in people:
        request = APIRequestFactory().get("/")
        request.user = person
        decisions.append(throttle().allow_request(request, view))
    return decisions


def test_decides_as_the_throttles_of_the_framework_do() -> None:
    rates: dict[str, str | None] = {"anon": "3/hour", "user": "2/min", "search": "1/day"}
    view = View()
    view.throttle_scope = "search"
    people = [None, _Named(1), _Named(2), None, _Named(1), _Named(1), None, None, _Named(2), _Named(2)]
    for mine, other in zip(_throttles(ours, rates), _throttles(theirs, rates), strict=True):
        mine_decides = _decisions(mine, view, people)
        assert mine_decides == _decisions(other, view, people)
        assert set(mine_decides) == {True, False}


def test_no_rate_no_key_and_no_scope_are_no_limit_and_a_rate_of_none_lets_no_request_through() -> None:
    rates: dict[str, str | None] = {"anon": None, "user": "0/min"}
    anon, user, scoped = _throttles(ours, rates)
    assert all(_decisions(anon, View(), [None] * 9))
    assert not any(_decisions(user, View(), [None] * 3))
    assert all(_decisions(scoped, View(), [None] * 9))
    assert all(_decisions(type("One", (ours.AnonRateThrottle,), {"rate": "1/day"}), View(), [_Named(1)] * 3))


def test_a_client_is_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "throttle_classes", [type("Two", (ours.AnonRateThrottle,), {"rate": "2/hour"})])
    client = APIClient()
    statuses = [client.get("/").status_code for _ in range(2)]
    refused = client.get("/")
    assert [*statuses, refused.status_code] == [200, 200, 429]
    assert 3500 < int(refused["Retry-After"]) <= 3600


def test_what_a_throttle_refuses_costs_nothing_in_limits_around_the_site(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (throttle, *_) = _throttles(ours, {"anon": "1/hour"})
    monkeypatch.setattr(View, "throttle_classes", [throttle])
    calls = [sl.Calls("requests", 100, 30 * 86_400)]
    around = sl.open(directory / "around", sl.LimitSet("around", calls))["around"]
    options = {"segment": around.path, "set": around.name}
    middleware = type("Middleware", (LimitMiddleware,), {"options": options})(View.as_view())
    for status in (200, 429, 429):
        response = middleware(APIRequestFactory().get("/"))
        assert response.status_code == status
        response.render().close()
    assert around.peek()["requests"].remaining == 99


def test_two_throttles_of_other_rates_count_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = type("Burst", (ours.AnonRateThrottle,), {"rate": "2/min", "scope": "burst"})
    daily = type("Daily", (ours.AnonRateThrottle,), {"rate": "3/day", "scope": "daily"})
    monkeypatch.setattr(View, "throttle_classes", [burst, daily])
    client = APIClient()
    assert [client.get("/").status_code for _ in range(4)] == [200, 200, 429, 429]


def test_settings_without_a_directory_are_an_error_that_says_what_to_write() -> None:
    settings.SHMLIMIT_THROTTLES = {}
    with pytest.raises(ImproperlyConfigured, match="SHMLIMIT_THROTTLES"):
        _decisions(type("One", (ours.AnonRateThrottle,), {"rate": "1/day"}), View(), [None])


@pytest.mark.parametrize("when_full", ["refuse", "evict_least_used"])
def test_keys_without_room_are_refused_and_told_when_there_is_some_if_that_is_known(when_full: str) -> None:
    settings.SHMLIMIT_THROTTLES |= {"max_keys": 1, "when_full": when_full}
    throttle_class = type("One", (ours.UserRateThrottle,), {"rate": "1/day"})
    for number in itertools.count():
        throttle = throttle_class()
        request = APIRequestFactory().get("/")
        request.user = _Named(number)
        if not throttle.allow_request(request, View()):
            break
    assert number > 0
    wait = throttle.wait()
    if when_full == "refuse":
        # No time is known, and a refusal says at least a second.
        assert wait == 1.0
    else:
        # All others are limited until then.
        assert wait is not None
        assert 86_000 < wait <= 86_400
