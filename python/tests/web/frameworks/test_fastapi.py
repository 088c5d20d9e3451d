"""The dependency for FastAPI's paths."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import shmlimit as sl
from shmlimit.fastapi import ClientAddress, Header, Limited, LimitRefused, problem_response

from ..conftest import Declare


def _get(app: FastAPI, path: str = "/", headers: dict[str, str] | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(send())


def test_a_key_is_told_the_quota_of_its_tier(declare: Declare) -> None:
    gold = sl.Tier("gold", {"requests": {"capacity": 3}})
    limits = declare(sl.Calls("requests", 2, 60, algorithm="fixed_window"), keyed=10, tiers=[gold])
    limits.assign("rich", "gold")
    app = FastAPI()

    @app.get("/", dependencies=[Depends(Limited(limits, key=Header("x-api-key")))])
    def path() -> str:
        return "done"

    @app.get("/gold", dependencies=[Depends(Limited(limits, key=Header("x-api-key"), tier=lambda _: "gold"))])
    def path_of_a_tier() -> str:
        return "done"

    told = [
        _get(app, path, {"x-api-key": key}).headers["ratelimit-policy"]
        for key, path in [("rich", "/"), ("other", "/"), ("other", "/gold")]
    ]
    assert told == ['"requests";q=3;w=60', '"requests";q=2;w=60', '"requests";q=3;w=60']


def test_a_path_is_limited_and_others_are_not(declare: Declare) -> None:
    app = FastAPI()
    limited = Limited(declare(sl.Calls("requests", 1, 60), keyed=10), key=ClientAddress())

    @app.get("/", dependencies=[Depends(limited)])
    def path() -> str:
        return "done"

    @app.get("/other")
    def other() -> str:
        return "done"

    first, second = _get(app), _get(app)
    assert first.status_code == 200
    assert first.headers["ratelimit"] == '"requests";r=0;t=60'
    assert second.status_code == 429
    assert 0 < int(second.headers["retry-after"]) <= 60
    assert second.json()["detail"]["violated-policies"] == ["requests"]
    assert _get(app, "/other").status_code == 200


def test_refusals_are_problems_where_the_handler_is_added(declare: Declare) -> None:
    app = FastAPI()
    app.add_exception_handler(LimitRefused, problem_response)
    limited = Limited(declare(sl.Calls("requests", 1, 60), keyed=10), key=Header("x-api-key"))

    @app.get("/", dependencies=[Depends(limited)])
    def path() -> str:
        return "done"

    responses = [_get(app, headers={"x-api-key": "ann"}) for _ in range(2)]
    assert responses[1].status_code == 429
    assert responses[1].headers["content-type"] == "application/problem+json"
    assert responses[1].json()["violated-policies"] == ["requests"]
    assert _get(app).status_code == 400


def test_a_path_settles_what_it_used(declare: Declare) -> None:
    app = FastAPI()
    limits = declare(sl.Rate("tokens", 100, 3600, algorithm="token_bucket"))
    limited = Limited(limits, costs={"tokens": 60})

    @app.get("/")
    def path(permit: Annotated[sl.Permit, Depends(limited)]) -> str:
        permit.settle(tokens=10)
        return "done"

    assert [_get(app).status_code for _ in range(4)] == [200] * 4
    assert limits.peek({"tokens": 0})["tokens"].remaining == 60


def test_the_permit_is_held_until_a_streamed_body_has_ended(declare: Declare) -> None:
    app = FastAPI()
    limits = declare(sl.Concurrency("in_flight", 1))
    seen: list[bool] = []

    def parts() -> Iterator[str]:
        for _ in range(2):
            seen.append(bool(limits.try_acquire()))
            yield "part"

    @app.get("/", dependencies=[Depends(Limited(limits))])
    def path() -> StreamingResponse:
        return StreamingResponse(parts())

    assert _get(app).text == "partpart"
    assert seen == [False, False]
    assert limits.try_acquire()


def test_paths_that_fail_give_back_what_they_took_and_say_so(declare: Declare, directory: Path) -> None:
    app = FastAPI()
    limits = declare(sl.Concurrency("in_flight", 1))

    @app.get("/{status}", dependencies=[Depends(Limited(limits))])
    def path(status: int) -> None:
        if status == 0:
            raise ZeroDivisionError
        raise HTTPException(status)

    assert [_get(app, f"/{status}").status_code for status in (404, 503, 0)] == [404, 503, 500]
    assert limits.try_acquire()
    [snapshot] = sl.open(directory / "segment").snapshot()["sets"]
    assert snapshot["limits"][0]["counts"]["failed"] == 2


SERVICE = """
import asyncio, sys
import httpx
from fastapi import Depends, FastAPI
import shmlimit as sl
from shmlimit.fastapi import Limited

path = sys.argv[1]
app = FastAPI()

def limited():
    # As each module of a service may do it.
    return Limited(sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 1_000_000, 60)]), participants=12)["api"])

for number in range(30):
    app.add_api_route(f"/{number}", lambda: "done", dependencies=[Depends(limited())])

async def get_all():
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return [(await client.get(f"/{number}")).status_code for number in range(30)]

print(asyncio.run(get_all()) == [200] * 30, flush=True)
sys.stdin.readline()
"""


def test_12_workers_with_30_limited_paths_each_are_12_participants(directory: Path) -> None:
    path = directory / "segment"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SERVICE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(12)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "True\n"
        program = Path(sys.executable).with_name("limitctl")
        shown = subprocess.run([program, "inspect", "--json", path], check=True, capture_output=True)
        participants = json.loads(shown.stdout)["participants"]
        assert sorted(each["pid"] for each in participants) == sorted(worker.pid for worker in workers)
    finally:
        for worker in workers:
            worker.communicate("\n")


def test_a_removed_segment_is_followed_by_the_next(declare: Declare) -> None:
    app = FastAPI()
    limits = declare(sl.Calls("requests", 1, 60))

    @app.get("/", dependencies=[Depends(Limited(limits))])
    def path() -> str:
        return "done"

    assert [_get(app).status_code for _ in range(2)] == [200, 429]
    sl.remove(limits.path, force=True)
    sl.open(limits.path, sl.LimitSet("api", [sl.Calls("requests", 1, 60)]))
    assert [_get(app).status_code for _ in range(2)] == [200, 429]
