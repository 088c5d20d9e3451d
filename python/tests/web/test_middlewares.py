"""What the ASGI and the WSGI middleware answer and add: the same, so each test is for both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import shmlimit as sl
from shmlimit import asgi, wsgi

from .conftest import Declare, wait_until

Get = Callable[..., httpx.Response]


def _status_asked_for(path: str) -> int:
    return int(path.strip("/") or 200)


async def _starlette(request: Request) -> PlainTextResponse:
    if request.url.path == "/exception":
        raise ZeroDivisionError
    return PlainTextResponse("done", _status_asked_for(request.url.path), {"RateLimit": '"inner";r=1'})


def _plain_wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/exception":
        raise ZeroDivisionError
    status = _status_asked_for(environ["PATH_INFO"])
    start_response(f"{status} Whatever", [("RateLimit", '"inner";r=1')])
    return [b"done"]


def _asgi_getter(limits: sl.SetHandle, **options: Any) -> Get:
    app = asgi.LimitMiddleware(Starlette(routes=[Route("/{path:path}", _starlette)]), limits, **options)

    def get(path: str = "/", method: str = "GET", **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.1.2.3", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())

    return get


def _wsgi_getter(limits: sl.SetHandle, **options: Any) -> Get:
    app = wsgi.LimitMiddleware(_plain_wsgi, limits, **options)

    def get(path: str = "/", method: str = "GET", **request: Any) -> httpx.Response:
        transport = httpx.WSGITransport(app, raise_app_exceptions=False, remote_addr="10.1.2.3")
        with httpx.Client(transport=transport, base_url="http://test") as client:
            return client.request(method, path, **request)

    return get


@pytest.fixture(params=[_asgi_getter, _wsgi_getter], ids=["asgi", "wsgi"])
def limited(request: pytest.FixtureRequest) -> Callable[..., Get]:
    getter: Callable[..., Get] = request.param
    return getter


Limited = Callable[..., Get]


def test_a_response_tells_how_all_limits_stand_beside_what_others_have_told(limited: Limited, declare: Declare) -> None:
    get = limited(declare(sl.Calls("requests", 2, 60), sl.Concurrency("in_flight", 8)))
    response = get()
    assert response.status_code == 200
    assert response.headers["ratelimit-policy"] == ('"requests";q=2;w=60, "in_flight";q=8;qu="concurrent-requests"')
    told = response.headers.get_list("ratelimit")
    assert told == ['"inner";r=1', '"requests";r=1;t=30, "in_flight";r=7']


def test_a_refusal_is_a_problem_that_names_the_policies_and_says_when(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls('100% "api"', 1, 60), sl.Calls("daily", 1, 3600), sl.Concurrency("in_flight", 8))
    get = limited(limits, policy_prefix="v1.")
    assert get().status_code == 200
    refused = get()
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.content)
    problem = refused.json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["status"] == 429
    assert sorted(problem["violated-policies"]) == ['v1.100%25 "api"', "v1.daily"]
    # The longest of all that refused, rounded up.
    assert 3590 < int(refused.headers["retry-after"]) <= 3600
    assert refused.headers["ratelimit"].startswith(r'"v1.100%25 \"api\"";r=0;t=')
    assert '"v1.in_flight";r=8' in refused.headers["ratelimit"]


def test_retry_after_is_a_second_where_only_a_permit_can_free_it(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Concurrency("in_flight", 1))
    get = limited(limits)
    with limits.try_acquire():
        refused = get()
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["ratelimit"] == '"in_flight";r=0'
    assert get().status_code == 200
    assert get().status_code == 200


def test_a_head_request_is_refused_without_a_body(limited: Limited, declare: Declare) -> None:
    get = limited(declare(sl.Calls("requests", 1, 60)))
    get()
    refused = get(method="HEAD")
    assert refused.status_code == 429
    assert refused.content == b""


def test_a_key_is_told_the_quota_of_its_tier(limited: Limited, declare: Declare) -> None:
    tiers = [sl.Tier("gold", {"requests": {"capacity": 3}}), sl.Tier("free", {"requests": {"capacity": 1}})]
    limits = declare(sl.Calls("requests", 2, 60, algorithm="fixed_window"), keyed=100, tiers=tiers)
    limits.assign("rich", "gold")
    get = limited(limits, key=asgi.Header("X-Api-Key"))
    rich, other = (get(headers={"x-api-key": key}) for key in ("rich", "other"))
    assert [each.headers["ratelimit-policy"] for each in (rich, other)] == [
        '"requests";q=3;w=60',
        '"requests";q=2;w=60',
    ]
    # A key that is refused is told the same.
    replies = [get(headers={"x-api-key": "rich"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[-1].headers["ratelimit-policy"] == '"requests";q=3;w=60'


@pytest.mark.parametrize("timeout", [None, 0])
def test_the_request_may_say_the_tier_of_its_key(limited: Limited, declare: Declare, timeout: float | None) -> None:
    tiers = [sl.Tier("gold", {"requests": {"capacity": 3}})]
    limits = declare(sl.Calls("requests", 2, 60, algorithm="fixed_window"), keyed=100, tiers=tiers)
    key = asgi.Header("X-Api-Key")
    get = limited(limits, key=key, timeout=timeout, tier=lambda _: "gold")
    assert get(headers={"x-api-key": "a"}).headers["ratelimit-policy"] == '"requests";q=3;w=60'
    assert limits.tier("a") == "gold"
    get = limited(limits, key=key, timeout=timeout, tier="gold")
    assert get(headers={"x-api-key": "b"}).headers["ratelimit-policy"] == '"requests";q=3;w=60'
    get = limited(limits, key=key, timeout=timeout, tier=lambda _: None)
    assert get(headers={"x-api-key": "c"}).headers["ratelimit-policy"] == '"requests";q=2;w=60'


@pytest.mark.parametrize("timeout", [None, 0])
def test_the_request_may_say_the_capacities_of_its_key(
    limited: Limited, declare: Declare, timeout: float | None
) -> None:
    keyed = sl.Keyed(100, overrides=True)
    limits = declare(sl.Calls("requests", 1, 60, algorithm="fixed_window"), keyed=keyed)
    key = asgi.Header("X-Api-Key")
    for name, overrides, places in [
        ("a", lambda _: {"requests": 3}, 3),
        ("b", {"requests": 2}, 2),
        ("c", lambda _: None, 1),
    ]:
        get = limited(limits, key=key, timeout=timeout, overrides=overrides)
        statuses = [get(headers={"x-api-key": name}).status_code for _ in range(places + 1)]
        assert statuses == [200] * places + [429]


def test_each_value_of_a_header_has_limits_of_its_own(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 1, 60), keyed=100)
    get = limited(limits, key=asgi.Header("X-Api-Key"))
    statuses = [get(headers={"x-api-key": key}).status_code for key in ["ann", "ann", "bob", "bob"]]
    assert statuses == [200, 429, 200, 429]
    for headers in [{}, {"x-api-key": ""}]:
        nameless = get(headers=headers)
        assert nameless.status_code == 400
        assert nameless.headers["content-type"] == "application/problem+json"
    assert limited(limits, key=asgi.Header("X-Api-Key", default="anonymous"))().status_code == 200


def test_a_header_that_is_there_twice_names_no_client(declare: Declare) -> None:
    get = _asgi_getter(declare(sl.Calls("requests", 1, 60), keyed=100), key=asgi.Header("X-Api-Key"))
    assert get(headers=[("x-api-key", "ann"), ("x-api-key", "bob")]).status_code == 400


def test_each_address_has_limits_of_its_own(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 1, 60), keyed=100)
    get = limited(limits, key=asgi.ClientAddress())
    assert [get().status_code for _ in range(2)] == [200, 429]
    assert not limits.check(key="10.1.2.3")


def test_addresses_are_counted_by_their_networks_where_the_limits_say_so(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 1, 60, prefix={"ipv4": 24, "ipv6": 48}), keyed=100)
    assert limited(limits, key=asgi.ClientAddress())().status_code == 200
    get = limited(limits, key=asgi.Header("X-Real-Ip"))
    statuses = [get(headers={"x-real-ip": address}).status_code for address in ["10.1.2.99", "10.1.3.1", "nonsense"]]
    assert statuses == [429, 200, 400]
    with pytest.raises(ValueError, match="networks"):
        limited(limits, key=asgi.ClientAddress(), timeout=1)


def test_keys_costs_and_exemptions_can_be_called_for(limited: Limited, declare: Declare) -> None:
    def path(request: Any) -> str:
        return str(request.get("PATH_INFO") or request["path"])

    limits = declare(sl.Rate("tokens", 10, 60), keyed=100)
    get = limited(
        limits,
        key=lambda _: "everybody",
        costs=lambda request: {"tokens": 6 if path(request) == "/201" else 4},
        exempt=lambda request: path(request) == "/204",
    )
    assert [get(path).status_code for path in ["/201", "/202", "/202", "/204"]] == [201, 202, 429, 204]
    assert "ratelimit-policy" not in get("/204").headers


def test_rate_limits_are_told_in_units_that_clients_know_only(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Rate("tokens", 10, 60), sl.Rate("bytes", 1000, 60))
    get = limited(limits, costs={"tokens": 1, "bytes": 400}, quota_units={"bytes": "content-bytes"})
    response = get()
    assert response.headers["ratelimit-policy"] == '"bytes";q=1000;qu="content-bytes";w=60'
    assert response.headers.get_list("ratelimit")[-1] == '"bytes";r=600;t=24'


def test_what_can_never_be_admitted_is_the_clients_affair(limited: Limited, declare: Declare) -> None:
    get = limited(declare(sl.Rate("tokens", 10, 60)), costs={"tokens": 11}, on_error="admit")
    refused = get()
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["tokens"]
    assert "retry-after" not in refused.headers


def test_a_key_for_which_there_is_no_room_is_turned_away_with_503(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 1, 3600), keyed=1)
    get = limited(limits, key=asgi.Header("X-Api-Key"))
    statuses = [get(headers={"x-api-key": str(key)}).status_code for key in range(100)]
    assert set(statuses) == {200, 503}


def test_a_throttled_set_is_answered_503_and_says_for_how_long(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 100, 60))
    limits.throttle(30)
    refused = limited(limits, on_error="admit")()
    assert refused.status_code == 503
    assert refused.json()["detail"] == "A service that this one depends on takes no requests for a while"
    assert refused.headers["retry-after"] == "30"


@pytest.mark.parametrize(("on_error", "status"), [("refuse", 500), ("admit", 200)])
def test_errors_of_the_limits_refuse_or_admit_as_declared(
    limited: Limited, declare: Declare, directory: Path, on_error: str, status: int
) -> None:
    get = limited(declare(sl.Calls("requests", 100, 60)), on_error=on_error)
    assert get().status_code == 200
    sl.remove(directory / "segment", force=True)
    response = get()
    assert response.status_code == status
    if status == 500:
        assert json.loads(response.content) == {
            "type": "about:blank",
            "title": "Internal Server Error",
            "status": 500,
        }


@pytest.mark.parametrize(("advertise", "told"), [("always", 2), ("when_refused", 1), ("never", 0)])
def test_the_fields_are_told_as_declared(limited: Limited, declare: Declare, advertise: str, told: int) -> None:
    get = limited(declare(sl.Calls("requests", 1, 60)), advertise=advertise)
    responses = [get(), get()]
    assert sum("ratelimit-policy" in response.headers for response in responses) == told
    assert "retry-after" in responses[1].headers


def test_a_request_waits_in_line_for_as_long_as_declared(limited: Limited, declare: Declare) -> None:
    get = limited(declare(sl.Calls("requests", 1, 0.2)), timeout=30)
    assert [get().status_code for _ in range(4)] == [200] * 4
    impatient = limited(declare(sl.Calls("requests", 1, 3600)), timeout=0.001)
    # There may be room for the first of them by now.
    assert [impatient().status_code for _ in range(3)][1:] == [429, 429]


def test_failed_work_is_told_to_the_limits(limited: Limited, declare: Declare, directory: Path) -> None:
    limits = declare(sl.Concurrency("in_flight", 4))
    segment = sl.open(directory / "segment")

    def dropped() -> int:
        [snapshot] = segment.snapshot()["sets"]
        assert snapshot["active"] == 0
        count: int = snapshot["limits"][0]["counts"]["failed"]
        return count

    get = limited(limits)
    for path in ["/200", "/404", "/500", "/exception"]:
        with suppress(ZeroDivisionError):
            get(path)
    assert dropped() == 2
    get = limited(limits, fails_with=lambda status: status == 503)
    for path in ["/500", "/503"]:
        get(path)
    assert dropped() == 3


def test_limits_that_change_are_described_as_they_are(limited: Limited, declare: Declare, directory: Path) -> None:
    get = limited(declare(sl.Calls("requests", 10, 60)))
    assert '"requests";q=10;w=60' in get().headers["ratelimit-policy"]
    changed = sl.LimitSet("api", limits=[sl.Calls("requests", 20, 60)])
    sl.open(directory / "segment").apply(changed)
    assert '"requests";q=20;w=60' in get().headers["ratelimit-policy"]


def test_the_permit_is_held_until_a_wsgi_body_has_ended_or_is_closed(declare: Declare) -> None:
    limits = declare(sl.Concurrency("in_flight", 1))

    def two_parts(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"one"
        yield b"two"

    app = wsgi.LimitMiddleware(two_parts, limits)

    def begin() -> Any:
        body = iter(app({"REQUEST_METHOD": "GET"}, lambda *_: lambda _: None))
        assert next(body) == b"one"
        assert not limits.try_acquire()
        return body

    assert list(begin()) == [b"two"]
    assert limits.try_acquire()
    with closing(begin()):
        pass
    assert limits.try_acquire()


def test_the_permit_is_held_until_an_asgi_body_has_ended_and_no_longer(declare: Declare) -> None:
    limits = declare(sl.Concurrency("in_flight", 1))
    seen = []

    async def two_parts(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for is_more in (True, False):
            await send({"type": "http.response.body", "body": b"part", "more_body": is_more})
            seen.append(bool(limits.try_acquire()))

    async def discard(message: Any) -> None:
        pass

    async def nothing_more() -> dict[str, Any]:
        return await asyncio.Future()

    app = asgi.LimitMiddleware(two_parts, limits)
    asyncio.run(app({"type": "http", "method": "GET"}, nothing_more, discard))
    assert seen == [False, True]


def test_a_request_that_is_cancelled_gives_its_place_back(declare: Declare) -> None:
    limits = declare(sl.Concurrency("in_flight", 1))

    async def scenario() -> None:
        is_working = asyncio.Event()

        async def work(scope: Any, receive: Any, send: Any) -> None:
            is_working.set()
            await asyncio.Event().wait()

        app = asgi.LimitMiddleware(work, limits)
        serving = asyncio.ensure_future(app({"type": "http"}, None, None))  # type: ignore[arg-type]
        await is_working.wait()
        assert not limits.try_acquire()
        serving.cancel()
        await asyncio.wait([serving])
        assert limits.try_acquire()

    asyncio.run(scenario())


def test_a_key_that_is_no_way_to_find_one_is_refused_at_once(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 1, 60), keyed=10)
    with pytest.raises(TypeError, match="x-api-key"):
        limited(limits, key="x-api-key")
    with pytest.raises(ValueError, match="on_error"):
        limited(limits, on_error="ignore")
    with pytest.raises(ValueError, match="advertise"):
        limited(limits, advertise="sometimes")


@pytest.mark.parametrize("timeout", [0.01, Decimal("0.01"), Fraction(1, 100), timedelta(milliseconds=10)])
def test_a_timeout_is_a_number_of_seconds_of_any_class(limited: Limited, declare: Declare, timeout: Any) -> None:
    limits = declare(sl.Concurrency("in_flight", 1))
    get = limited(limits, timeout=timeout)
    assert get().status_code == 200
    with limits.acquire():
        assert get().status_code == 429


def _successor(path: str, *limits: Any, **options: Any) -> sl.Segment:
    sl.remove(path, force=True)
    return sl.open(path, sl.LimitSet("api", limits, **options))


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_the_segment_that_took_the_place_of_a_removed_one_is_asked_by_itself(
    limited: Limited, declare: Declare, timeout: float | None
) -> None:
    limits = declare(sl.Calls("requests", 1, 60), keyed=10)
    get = limited(limits, key=asgi.ClientAddress(), timeout=timeout, advertise="always")
    assert get().status_code == 200
    for capacity in (3, 4):
        _successor(limits.path, sl.Calls("requests", capacity, 60), sl.Concurrency("in_flight", 2), keyed=10)
        told = get().headers.get_list("ratelimit")[1]
        assert told.startswith(f'"requests";r={capacity - 1};')
        assert told.endswith('"in_flight";r=1')


def test_errors_are_dealt_with_as_ever_until_a_removed_segment_has_a_successor(
    limited: Limited, declare: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    limits = declare(sl.Calls("requests", 9, 60))
    refuses, admits = limited(limits), limited(limits, on_error="admit")
    sl.remove(limits.path, force=True)
    for _ in range(3):
        assert refuses().status_code == 500
        assert admits().status_code == 200
    warned = [record.message for record in caplog.records if record.message.startswith("the segment at")]
    assert len(warned) == 1
    assert "was removed: it was retired" in warned[0]
    sl.open(limits.path, sl.LimitSet("api", [sl.Calls("requests", 5, 60)]))
    wait_until(lambda: refuses().status_code == 200, "the successor is found")


def test_a_set_that_the_successor_does_not_have_is_an_error(limited: Limited, declare: Declare) -> None:
    limits = declare(sl.Calls("requests", 9, 60))
    get = limited(limits)
    sl.remove(limits.path, force=True)
    sl.open(limits.path, sl.LimitSet("other", [sl.Calls("requests", 5, 60)]))
    assert get().status_code == 500
