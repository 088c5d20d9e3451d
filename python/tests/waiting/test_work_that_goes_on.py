"""Limited functions whose work is not done when they return: the permit is held until it is, or it is a TypeError."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from conftest import TIMEOUT, wait_until

import shmlimit as sl


@pytest.fixture
def limits(open_set: Callable[..., sl.SetHandle]) -> sl.SetHandle:
    """One place."""
    return open_set(sl.Concurrency("places", 1))


def _is_held(limits: sl.SetHandle) -> bool:
    return limits.peek()["places"].remaining == 0


async def _held_while(limits: sl.SetHandle, begin: Callable[[Any], Any]) -> None:
    """Begins work that waits for an event, and checks that the place is taken until the work has ended."""
    goes_on = asyncio.Event()

    async def work() -> bool:
        await goes_on.wait()
        return _is_held(limits)

    running = limits.limited(lambda: begin(work()))()
    await asyncio.sleep(0)
    assert _is_held(limits)
    goes_on.set()
    result = await running
    assert result is True or result == [True]


@pytest.mark.parametrize("begin", [asyncio.ensure_future, asyncio.gather, asyncio.shield])
def test_a_function_that_returns_a_task_or_a_future_holds_its_permit_until_that_is_done(
    limits: sl.SetHandle, begin: Callable[[Any], Any]
) -> None:
    async def scenario() -> None:
        await asyncio.wait_for(_held_while(limits, begin), TIMEOUT)

    asyncio.run(scenario())
    assert not _is_held(limits)


@pytest.mark.parametrize("ending", ["result", "error", "cancelled"])
def test_a_task_gives_the_permit_back_however_it_ends(limits: sl.SetHandle, ending: str) -> None:
    async def scenario() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        assert limits.limited(lambda: future)() is future
        assert _is_held(limits)
        if ending == "result":
            future.set_result(1)
        elif ending == "error":
            future.set_exception(ZeroDivisionError())
        else:
            future.cancel()
        with contextlib.suppress(ZeroDivisionError, asyncio.CancelledError):
            await future
        await asyncio.sleep(0)
        assert not _is_held(limits)

    asyncio.run(scenario())


def test_a_function_that_submits_work_to_a_pool_holds_its_permit_until_that_is_done(limits: sl.SetHandle) -> None:
    goes_on = Event()
    with ThreadPoolExecutor(1) as pool:
        future: Future[bool] = limits.limited(lambda: pool.submit(goes_on.wait, TIMEOUT))()
        assert _is_held(limits)
        goes_on.set()
        assert future.result(TIMEOUT)
    wait_until(lambda: not _is_held(limits), "the place to be given back")


def _parts(limits: sl.SetHandle) -> Any:
    yield _is_held(limits)
    yield _is_held(limits)


async def _parts_async(limits: sl.SetHandle) -> Any:
    yield _is_held(limits)
    yield _is_held(limits)


def test_a_function_that_returns_a_generator_holds_its_permit_until_that_ends(limits: sl.SetHandle) -> None:
    parts = limits.limited(_parts.__call__)
    for make in (limits.limited(lambda: _parts(limits)), functools.partial(parts, limits)):
        assert [*make()] == [True, True]
        assert not _is_held(limits)
    abandoned = limits.limited(lambda: _parts(limits))()
    assert next(abandoned)
    assert _is_held(limits)
    del abandoned
    assert not _is_held(limits)
    never_begun = limits.limited(lambda: _parts(limits))()
    assert _is_held(limits)
    del never_begun
    assert not _is_held(limits)


def test_a_function_that_returns_an_asynchronous_generator_holds_its_permit_until_that_ends(
    limits: sl.SetHandle,
) -> None:
    @limits.limited
    async def ask() -> Any:
        return _parts_async(limits)

    async def scenario() -> None:
        assert [part async for part in await ask()] == [True, True]
        assert not _is_held(limits)
        assert [part async for part in limits.limited(lambda: _parts_async(limits))()] == [True, True]
        assert not _is_held(limits)
        stopped = await ask()
        assert await anext(stopped)
        await stopped.aclose()
        assert not _is_held(limits)

    asyncio.run(scenario())


class _Awaitable:
    def __await__(self) -> Any:
        yield

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@contextlib.contextmanager
def _entered() -> Any:
    yield


@contextlib.asynccontextmanager
async def _entered_async() -> Any:
    yield


class _Stream:
    """The kind of object that clients return for answers that arrive in parts."""

    def __init__(self) -> None:
        self.response = None

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> None:
        raise StopAsyncIteration


def _starlette() -> Any:
    from starlette.responses import StreamingResponse

    return StreamingResponse(iter([b"part"]))


def _django() -> Any:
    from django.conf import settings
    from django.http import StreamingHttpResponse

    if not settings.configured:
        settings.configure()
    return StreamingHttpResponse(iter([b"part"]))


def _flask() -> Any:
    from flask import Response

    return Response(iter([b"part"]))


async def _coroutine() -> None: ...


@pytest.mark.parametrize(
    "returned", [_coroutine, _Awaitable, _entered, _entered_async, _Stream, _starlette, _django, _flask]
)
@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_where_no_one_can_tell_when_the_work_ends_it_is_a_type_error_and_nothing_stays_held(
    limits: sl.SetHandle, returned: Callable[[], Any], is_asynchronous: bool
) -> None:
    async def asynchronously() -> Any:
        return returned()

    def call() -> None:
        if is_asynchronous:
            asyncio.run(limits.limited(asynchronously)())
        else:
            limits.limited(lambda: returned())()

    with pytest.raises(TypeError, match=r"limit|await|put"):
        call()
    assert not _is_held(limits)


def test_what_is_whole_when_it_is_returned_is_returned_as_it_is(limits: sl.SetHandle) -> None:
    for whole in (None, 1, "text", [1], {"a": 1}, io.BytesIO(b"text"), iter([1, 2]), range(3)):
        assert limits.limited(lambda whole=whole: whole)() is whole
        assert not _is_held(limits)


@pytest.mark.parametrize("lazy", [map, filter])
def test_a_lazy_iterator_holds_the_permit_until_its_last_part(limits: sl.SetHandle, lazy: Callable[..., Any]) -> None:
    parts = limits.limited(lambda: lazy(lambda _: _is_held(limits), [1, 2]))()
    assert list(parts) in ([True, True], [1, 2])
    assert not _is_held(limits)
