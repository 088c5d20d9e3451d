"""Throttles as users derive them from Django REST Framework's, derived from those and from ours: both decide alike."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from rest_framework import throttling as theirs
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from shmlimit import rest_framework as ours

REQUESTS = 6


@pytest.fixture(autouse=True)
def throttles(directory: Path) -> Iterator[None]:
    """Settings that name a directory of the test's own."""
    settings.SHMLIMIT_THROTTLES = {"directory": str(directory / "throttles"), "max_keys": 100}
    ours._directory.cache_clear()
    cache.clear()
    yield
    ours._directory.cache_clear()
    cache.clear()
    del settings.SHMLIMIT_THROTTLES


def _answers(throttle: type[Any]) -> list[tuple[int, str | None, list[int]]]:
    """The status, `Retry-After` and what the throttle noted, for each request."""

    class View(APIView):
        throttle_classes = (throttle,)

        def get(self, _: Any) -> Response:
            return Response("done")

    answers = []
    for _ in range(REQUESTS):
        noted: list[int] = []
        throttle.noted = noted
        answer = View.as_view()(APIRequestFactory().get("/", REMOTE_ADDR="192.0.2.1"))
        answers.append((answer.status_code, answer.get("Retry-After"), noted))
    return answers


def _reads_history_after(module: Any) -> type[Any]:
    class Throttle(module.AnonRateThrottle):
        rate = "3/hour"

        def allow_request(self, request: Any, view: Any) -> bool:
            allowed: bool = super().allow_request(request, view)
            self.noted.append(self.num_requests - len(self.history))
            return allowed

    return Throttle


def _reads_history_at_success_and_failure(module: Any) -> type[Any]:
    class Throttle(module.AnonRateThrottle):
        rate = "3/hour"

        def throttle_success(self) -> bool:
            self.noted.append(len(self.history))
            counted: bool = super().throttle_success()
            self.noted.append(len(self.history))
            return counted

        def throttle_failure(self) -> bool:
            self.noted.append(len(self.history))
            oldest_leaves_after = self.history[-1] + self.duration - self.now
            assert 3500 < oldest_leaves_after <= 3600
            refused: bool = super().throttle_failure()
            return refused

    return Throttle


def _counts_nothing_itself(module: Any) -> type[Any]:
    class Throttle(module.AnonRateThrottle):
        rate = "2/hour"

        def throttle_success(self) -> bool:
            return True

    return Throttle


def _counts_every_second_later(module: Any) -> type[Any]:
    class Throttle(module.AnonRateThrottle):
        rate = "2/hour"
        requests = 0

        def throttle_success(self) -> bool:
            return True

        def allow_request(self, request: Any, view: Any) -> bool:
            allowed: bool = super().allow_request(request, view)
            type(self).requests += 1
            if allowed and self.requests % 2 == 0:
                super().throttle_success()
            return allowed

    return Throttle


def _lets_refused_requests_through(module: Any) -> type[Any]:
    class Throttle(module.AnonRateThrottle):
        rate = "2/hour"

        def throttle_failure(self) -> bool:
            self.noted.append(len(self.history))
            return True

    return Throttle


def _of_rate(requests: float, duration: float) -> Callable[[Any], type[Any]]:
    def derive(module: Any) -> type[Any]:
        class Throttle(module.AnonRateThrottle):
            rate = "as parsed"

            def parse_rate(self, _: Any) -> tuple[float, float]:
                return requests, duration

        return Throttle

    return derive


def _of_key(key: object) -> Callable[[Any], type[Any]]:
    def derive(module: Any) -> type[Any]:
        class Throttle(module.AnonRateThrottle):
            rate = "2/hour"

            def get_cache_key(self, request: Any, view: Any) -> Any:
                return key

        return Throttle

    return derive


@pytest.mark.filterwarnings("ignore:Cache key")
@pytest.mark.parametrize(
    "derive",
    [
        _reads_history_after,
        _reads_history_at_success_and_failure,
        _counts_nothing_itself,
        _counts_every_second_later,
        _lets_refused_requests_through,
        *(
            pytest.param(_of_rate(requests, duration), id=f"{requests} per {duration} s")
            for requests, duration in [
                (2.0, 3600),
                (2, 3600.5),
                (0, 60),
                (-1, 60),
                (0.0, 0.5),
                (1, 0),
                (math.inf, 60),
                (2, 10**9),
            ]
        ),
        *(
            pytest.param(_of_key(key), id=f"key {key!r}")
            for key in [("tuple", 1), uuid.UUID(int=1), "", 7, -7, 10**30, True, 1.5, b"bytes", frozenset({1}), None]
        ),
    ],
)
def test_a_derived_throttle_decides_as_one_that_is_derived_from_the_framework_s(
    derive: Callable[[Any], type[Any]],
) -> None:
    expected = _answers(derive(theirs))
    assert _answers(derive(ours)) == expected


def test_keeping_counts_in_the_framework_s_cache_is_an_error_that_says_what_works() -> None:
    class Throttle(ours.AnonRateThrottle):
        rate = "1/hour"

        def throttle_failure(self) -> bool:
            self.cache.set(self.key, [self.now, *self.history], self.duration)
            return False

    request = APIRequestFactory().get("/")
    request.user = None
    assert Throttle().allow_request(request, APIView())
    with pytest.raises(NotImplementedError, match="history"):
        Throttle().allow_request(request, APIView())


def test_other_keys_of_one_text_and_keys_of_other_texts_are_kept_apart() -> None:
    def is_allowed(key: object) -> bool:
        request = APIRequestFactory().get("/")
        allowed: bool = _of_key(key)(ours)().allow_request(request, APIView())
        return allowed

    assert [is_allowed(("a", 1)) for _ in range(3)] == [True, True, False]
    assert is_allowed(("a", 2))
    assert not is_allowed("('a', 1)")
