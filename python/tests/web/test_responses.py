"""The responses of programs that ask the limits themselves are those of the integrations."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import pytest

import shmlimit as sl
from shmlimit import asgi
from shmlimit.http import Answer, rate_limit_fields, refusal_response

from .conftest import Declare

OPTIONS: dict[str, Any] = {"quota_units": {"tokens": "tokens"}, "policy_prefix": "our-"}


async def _done(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def _ask(limits: sl.SetHandle, **options: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(asgi.LimitMiddleware(_done, limits, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/")

    return asyncio.run(ask())


def _same(answer: Answer, response: httpx.Response) -> None:
    assert (answer.status, answer.problem) == (response.status_code, response.json())
    assert {name.lower(): value for name, value in answer.headers} == dict(response.headers)


@pytest.fixture
def limits(declare: Declare, shmlimit_clock: sl.VirtualClock) -> sl.SetHandle:
    """Two requests and a hundred tokens an hour, on a clock that stands still."""
    return declare(
        sl.Calls("requests", 2, 3600, algorithm="fixed_window"), sl.Rate("tokens", 100, 3600, algorithm="fixed_window")
    )


def test_a_refusal_is_answered_as_the_middleware_answers_it(limits: sl.SetHandle) -> None:
    for _ in range(2):
        assert limits.check({"tokens": 1})
    response = _ask(limits, costs={"tokens": 1}, **OPTIONS)
    assert response.status_code == 429
    _same(refusal_response(limits.try_acquire({"tokens": 1}), limits, **OPTIONS), response)
    _same(refusal_response(limits.check({"tokens": 1}), limits, **OPTIONS), response)
    with pytest.raises(sl.AcquireTimeout) as raised:
        limits.acquire({"tokens": 1}, timeout=0)
    _same(refusal_response(raised.value, limits, **OPTIONS), response)
    assert not [name for name, _ in refusal_response(raised.value, limits, advertise="never").fields if "Rate" in name]
    with pytest.raises(ValueError, match="pickle"):
        refusal_response(pickle.loads(pickle.dumps(raised.value)), limits)


def test_errors_are_answered_as_the_middleware_answers_them(declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 2, 3600, algorithm="fixed_window"), keyed=10)
    for options, asked in [
        ({"key": lambda _: "ann", "costs": {"requests": 3}}, lambda: limits.acquire({"requests": 3}, key="ann")),
        ({}, limits.acquire),
        ({"key": lambda _: ""}, lambda: limits.acquire(key="")),
        ({"key": lambda _: "ann", "tier": "gold"}, lambda: limits.acquire(key="ann", tier="gold")),
    ]:
        with pytest.raises(sl.Error) as raised:
            asked()
        _same(refusal_response(raised.value, limits), _ask(limits, **options))


def test_an_admission_has_the_fields_of_the_middleware(limits: sl.SetHandle) -> None:
    response = _ask(limits, costs={"tokens": 1}, **OPTIONS)
    limits.reset()
    for admitted in (limits.try_acquire({"tokens": 1}), None):
        if admitted is None:
            limits.reset()
            admitted = limits.check({"tokens": 1})
        fields = rate_limit_fields(admitted, limits, **OPTIONS)
        assert {name.lower(): value for name, value in fields} == {
            name: value for name, value in response.headers.items() if name.startswith("ratelimit")
        }
    with pytest.raises(ValueError, match="admitted"):
        refusal_response(limits.check({"tokens": 1}), limits)
    with pytest.raises(ValueError, match="refused"):
        rate_limit_fields(limits.check({"tokens": 1}), limits)
