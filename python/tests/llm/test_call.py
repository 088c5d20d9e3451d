"""Calls under a permit: what they settle, give back, leave charged, and tell the limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
from conftest import queued, wait_until
from starlette.exceptions import HTTPException

import shmlimit as sl
from shmlimit import llm

from .upstream import Upstream

OpenSet = Callable[..., sl.SetHandle]
CHUNKS = [{"choices": [{"delta": {}}]}, {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5}}]
WHOLE = {"usage": {"prompt_tokens": 20, "completion_tokens": 5}}


@pytest.fixture
def limits(open_set: OpenSet) -> Iterator[sl.SetHandle]:
    """Ten requests, a thousand tokens and four places; the places are all free again at the end."""
    limits = open_set(
        sl.Calls("requests", 10, 3600, algorithm="sliding_window"),
        sl.Rate("tokens", 1000, 3600, algorithm="sliding_window"),
        sl.Concurrency("places", 4),
    )
    yield limits
    wait_until(lambda: left(limits)[2] == 4, "every place is given back")


def left(limits: sl.SetHandle) -> tuple[int, ...]:
    """What is left of requests, tokens and places."""
    verdicts = limits.peek({"tokens": 0})
    return tuple(int(verdicts[name].remaining) for name in ("requests", "tokens", "places"))


def run(limits: sl.SetHandle, body: Callable[[llm.Call], Awaitable[Any]], **options: Any) -> BaseException | None:
    """Runs a body under a call that reserves a hundred tokens; returns what it raised."""

    async def main() -> BaseException | None:
        try:
            async with llm.Call(limits.acquire_async({"tokens": 100}), **options) as call:
                assert left(limits) == (9, 900, 3)
                await body(call)
        except BaseException as error:
            return error
        return None

    return asyncio.run(main())


async def stream(parts: list[Any] = CHUNKS, error: BaseException | None = None) -> AsyncIterator[Any]:
    """A stream that may break at its end."""
    for part in parts:
        yield part
    if error is not None:
        raise error


def raising(error: BaseException) -> Callable[[llm.Call], Awaitable[Any]]:
    """A body that raises this."""

    async def body(_: llm.Call) -> None:
        raise error

    return body


def answered(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    """The exception that httpx raises for a status."""
    request = httpx.Request("POST", "http://provider/")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=headers))


def test_a_response_settles_what_it_used(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.note(WHOLE)
        assert call.usage == llm.Usage(20, 5)

    assert run(limits, body) is None
    assert left(limits) == (9, 975, 4)


def test_what_an_answer_cost_is_debited_when_it_has_settled_its_tokens(open_set: OpenSet) -> None:
    limits = open_set(
        sl.Rate("tokens", 1000, 3600, algorithm="sliding_window"), sl.Budget("dollars", 1, "1h", unit="0.0001")
    )
    with llm.Call(limits.acquire({"tokens": 100})) as call:
        call.note(WHOLE)
        assert call.permit.debit("dollars", 0.1 + 0.2)
    left = limits.forecast()
    assert (left["tokens"].spendable, str(left["dollars"].spendable)) == (975, "0.7")


def test_a_stream_passes_unchanged_and_settles_when_it_has_ended(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        assert [part async for part in call.watch(stream())] == CHUNKS
        # Before the block ends, which may be later than the release of whatever else holds the permit.
        assert left(limits) == (9, 975, 3)

    assert run(limits, body) is None
    assert left(limits) == (9, 975, 4)


@pytest.mark.parametrize("again", ["note", "watch", "watch_async"])
def test_each_answer_takes_a_call_of_its_own(limits: sl.SetHandle, again: str) -> None:
    async def body(call: llm.Call) -> None:
        call.note(WHOLE)
        if again == "note":
            call.note(WHOLE)
        elif again == "watch":
            list(call.watch(CHUNKS))
        else:
            async for _ in call.watch(stream()):
                pass

    assert isinstance(run(limits, body), sl.AlreadySettled)
    assert left(limits) == (9, 975, 4)


def test_a_permit_that_was_released_too_early_is_reported(
    limits: sl.SetHandle, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(call: llm.Call) -> None:
        call.permit.release()
        call.note(WHOLE)

    with caplog.at_level(logging.WARNING, "shmlimit"):
        assert run(limits, body) is None
    assert ["released before" in record.message for record in caplog.records] == [True]
    assert left(limits) == (9, 900, 4)


def test_what_is_over_the_reservation_is_charged(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.note({"usage": {"prompt_tokens": 100, "completion_tokens": 50}})

    assert run(limits, body) is None
    assert left(limits) == (9, 850, 4)


def test_a_stream_left_after_its_last_report_is_settled(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        async for part in call.watch(stream([*CHUNKS, "data: [DONE]"])):
            if part == CHUNKS[-1]:
                break

    assert run(limits, body) is None
    assert left(limits) == (9, 975, 4)


def test_a_stream_left_early_stays_charged(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        async for _ in call.watch(stream([{"usage": {"input_tokens": 20, "output_tokens": 1}}, *CHUNKS])):
            break

    assert run(limits, body) is None
    assert left(limits) == (9, 900, 4)


def test_an_answer_without_usage_stays_charged_and_is_reported_once(
    limits: sl.SetHandle, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmlimit.llm._call._warned", set())

    async def body(call: llm.Call) -> None:
        call.note({"choices": []})
        limits.reset()

    async def chunks(call: llm.Call) -> None:
        async for _ in call.watch(stream(CHUNKS[:1])):
            pass

    with caplog.at_level(logging.WARNING, "shmlimit"):
        run(limits, body)
        run(limits, chunks)
    assert left(limits) == (9, 900, 4)
    assert ["include_usage" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("names", "spent"),
    [
        (("tokens", "total_tokens", "other"), (20, 20, 50)),
        (("input_tokens", "output_tokens", "uncached_tokens"), (15, 5, 11)),
    ],
)
def test_limits_count_what_their_names_say(open_set: OpenSet, names: tuple[str, ...], spent: tuple[int, ...]) -> None:
    limits = open_set(*(sl.Rate(name, 100, 3600, algorithm="token_bucket") for name in names))
    usage = {"input_tokens": 11, "cache_read_input_tokens": 4, "output_tokens": 5}

    async def main() -> None:
        async with llm.Call(limits.acquire_async(dict.fromkeys(names, 50))) as call:
            call.note({"usage": usage})

    asyncio.run(main())
    verdicts = limits.peek(dict.fromkeys(names, 0))
    assert tuple(100 - verdicts[name].remaining for name in names) == spent


async def _dollars_soon(usage: llm.Usage) -> dict[str, int]:
    return {"tokens": usage.input_tokens, "requests": 0}


@pytest.mark.parametrize("costs", [lambda usage: {"tokens": usage.input_tokens, "requests": 0}, _dollars_soon])
def test_a_function_says_what_a_usage_costs(limits: sl.SetHandle, costs: Any) -> None:
    async def body(call: llm.Call) -> None:
        call.note(WHOLE)

    assert run(limits, body, costs=costs) is None
    assert left(limits) == (10, 980, 4)


def test_a_function_of_costs_that_raises_keeps_no_place(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.note(WHOLE)

    assert isinstance(run(limits, body, costs=lambda usage: usage.nonsense), AttributeError)
    assert left(limits) == (9, 900, 4)


def _caused_by(cause: BaseException, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


FREE: dict[str, BaseException] = {
    "httpx cannot connect": httpx.ConnectError("no"),
    "httpx connects too slowly": httpx.ConnectTimeout("no"),
    "httpx has no connection free": httpx.PoolTimeout("no"),
    "aiohttp cannot connect": aiohttp.ClientConnectorError(SimpleNamespace(ssl=None), OSError(111, "no")),  # type: ignore[arg-type]
    "a library wraps it": _caused_by(_caused_by(ConnectionRefusedError(), httpx.ConnectError("no")), RuntimeError()),
    "a group of one": type("Group", (Exception,), {"exceptions": (httpx.ConnectError("no"),)})(),
    "refused": ConnectionRefusedError(),
    "no such host": socket.gaierror(),
    "not the right host": ssl.SSLCertVerificationError(),
    **{f"{status}": answered(status) for status in (400, 401, 403, 404, 413, 422, 429, 503, 529)},
    "aiohttp got 400": aiohttp.ClientResponseError(SimpleNamespace(), (), status=400),  # type: ignore[arg-type]
    "an SDK got 404": _caused_by(ValueError(), type("NotFound", (Exception,), {"status_code": 404})()),
    "Google's library got 429": type("ClientError", (Exception,), {"code": 429, "response": None})(),
    "an SDK got 529 without a response": type("Overloaded", (Exception,), {"status_code": 529})(),
    "limits of ours": sl.Refused("no"),
    "limits of ours in time": sl.AcquireTimeout("no"),
}
CHARGED: dict[str, BaseException] = {
    "the answer is late": httpx.ReadTimeout("no"),
    "the connection broke": httpx.ReadError("no"),
    "reset": ConnectionResetError(),
    "aiohttp lost the server": aiohttp.ServerDisconnectedError(),
    **{f"{status}": answered(status) for status in (408, 499, 500, 502, 504)},
    "the program's own": KeyError("x"),
    "the program's own answer": HTTPException(429),
    "cancelled": asyncio.CancelledError(),
    "late": TimeoutError(),
}


@pytest.mark.parametrize("error", FREE)
def test_what_cost_nothing_is_given_back(limits: sl.SetHandle, error: str) -> None:
    assert run(limits, raising(FREE[error])) is FREE[error]
    assert left(limits) == (10, 1000, 4)


@pytest.mark.parametrize("error", CHARGED)
def test_what_may_have_cost_stays_charged(limits: sl.SetHandle, error: str) -> None:
    assert run(limits, raising(CHARGED[error])) is CHARGED[error]
    assert left(limits) == (9, 900, 4)
    # And the error says nothing about the provider.
    with limits.try_acquire({"tokens": 1}):
        pass


def test_an_error_after_the_whole_answer_changes_nothing(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.note(WHOLE)
        raise KeyError

    assert isinstance(run(limits, body), KeyError)
    assert left(limits) == (9, 975, 4)


def test_the_caller_may_know_that_nothing_was_spent(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.refund()
        call.refund()
        assert left(limits) == (10, 1000, 3)
        raise KeyError

    run(limits, body)
    assert left(limits) == (10, 1000, 4)


def test_the_caller_may_settle_by_itself(limits: sl.SetHandle) -> None:
    async def body(call: llm.Call) -> None:
        call.permit.settle(tokens=7)
        call.note(WHOLE)

    assert run(limits, body) is None
    assert left(limits) == (9, 993, 4)


@pytest.mark.parametrize("status", [429, 529])
@pytest.mark.parametrize("said", ["raised", "noted", "noted and raised", "raised by a library"])
def test_a_provider_that_is_overloaded_holds_everybody_back(limits: sl.SetHandle, status: int, said: str) -> None:
    error = answered(status, {"retry-after": "30"})

    async def body(call: llm.Call) -> None:
        if "noted" in said:
            call.note(error.response)
            refused = limits.try_acquire({"tokens": 1})
            assert refused.reason == "throttled"
        if said == "raised by a library":
            raise _caused_by(error, type("RateLimitError", (Exception,), {"response": error.response})())
        if "raised" in said:
            raise error

    run(limits, body)
    refused = limits.try_acquire({"tokens": 1})
    assert (refused.reason, round(refused.retry_after)) == ("throttled", 30)
    assert left(limits) == (10, 1000, 4)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"error": {"code": "rate_limit_exceeded"}},
        {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}},
        {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
        'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n',
    ],
    ids=str,
)
def test_a_stream_that_fails_for_load_holds_everybody_back_and_stays_charged(limits: sl.SetHandle, event: Any) -> None:
    async def body(call: llm.Call) -> None:
        async for _ in call.watch(stream([CHUNKS[0], event])):
            pass

    assert run(limits, body) is None
    assert limits.try_acquire({"tokens": 1}).reason == "throttled"
    assert left(limits) == (9, 900, 4)


def test_a_cancelled_call_leaves_the_queue_and_takes_nothing(limits: sl.SetHandle) -> None:
    async def main() -> None:
        held = [limits.try_acquire({"tokens": 0}) for _ in range(4)]

        async def call() -> None:
            async with llm.Call(limits.acquire_async({"tokens": 100})):
                pytest.fail("there is no place")

        waiting = [asyncio.create_task(call()) for _ in range(3)]
        while queued(limits) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*waiting, return_exceptions=True)
        )
        assert queued(limits) == 0
        for permit in held:
            permit.release()

    asyncio.run(main())
    assert left(limits) == (6, 1000, 4)


def test_a_call_that_is_cancelled_in_its_stream_gives_its_place_back(limits: sl.SetHandle) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[Any]:
            yield CHUNKS[0]
            begun.set()
            await asyncio.Event().wait()

        async def call() -> None:
            async with llm.Call(limits.acquire_async({"tokens": 100})) as call:
                async for _ in call.watch(endless()):
                    pass

        task = asyncio.create_task(call())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert left(limits) == (9, 900, 4)


def test_a_refused_call_takes_nothing(limits: sl.SetHandle) -> None:
    async def main() -> None:
        async with llm.Call(limits.acquire_async({"tokens": 900}, timeout=0)):
            with pytest.raises(sl.AcquireTimeout):
                async with llm.Call(limits.acquire_async({"tokens": 200}, timeout=0)):
                    pass

    asyncio.run(main())
    assert left(limits) == (9, 100, 4)


def test_a_permit_without_a_task_is_held_by_a_plain_block(limits: sl.SetHandle) -> None:
    with llm.Call(limits.acquire({"tokens": 100})) as call:
        assert list(call.watch(CHUNKS)) == CHUNKS
    assert left(limits) == (9, 975, 4)
    with pytest.raises(httpx.ConnectError), llm.Call(limits.acquire({"tokens": 100})):
        raise httpx.ConnectError("no")
    assert left(limits) == (9, 975, 4)
    permit = limits.acquire({"tokens": 100})
    with pytest.raises(TypeError, match="costs is asynchronous"), llm.Call(permit, costs=_dollars_soon):
        pass
    permit.release()
    awaitable: Any = object()
    with pytest.raises(TypeError, match="async with"), llm.Call(awaitable):
        pass


def test_the_strictest_provider_refuses_nothing_and_is_used_up(segment_path: Any) -> None:
    clock = sl.VirtualClock()
    provider = Upstream(20, 10_000, 60, lambda: clock.now)
    declared = sl.LimitSet(
        "set",
        [
            sl.Calls("requests", 20, 60, algorithm="sliding_window"),
            sl.Rate("tokens", 10_000, 60, algorithm="sliding_window"),
        ],
    )
    limits = sl.open(segment_path, declared, clock=clock)["set"]
    seconds = 600
    for second in range(seconds):
        # Reserves up to 1,500, and uses a third to two thirds of that.
        while permit := limits.try_acquire({"tokens": 1500}):
            with llm.Call(permit) as call:
                status, headers, body = provider.answer(400 + second % 200, 200 + second % 300)
                call.note(SimpleNamespace(status_code=status, headers=headers, usage=body))
        clock.advance(1)
    assert provider.refused == 0
    assert provider.most_tokens <= 10_000
    # What is left of a window is less than one reservation.
    assert provider.tokens_served >= (10_000 - 1500) * seconds / 60


def test_a_provider_that_allows_less_than_declared_refuses_once_in_each_wait(segment_path: Any) -> None:
    clock = sl.VirtualClock()
    provider = Upstream(5, 10_000, 60, lambda: clock.now)
    limits = sl.open(segment_path, sl.LimitSet("set", [sl.Calls("requests", 100, 60)]), clock=clock)["set"]
    for _ in range(600):
        while permit := limits.try_acquire():
            with llm.Call(permit) as call:
                status, headers, body = provider.answer(1, 1)
                call.note(SimpleNamespace(status_code=status, headers=headers, usage=body))
        clock.advance(1)
    assert provider.served == 50
    assert provider.refused <= 10
