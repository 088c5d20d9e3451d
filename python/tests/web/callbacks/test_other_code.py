"""Code of the program that is called without being given as a callable: loops, futures, amounts, configurations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shmlimit.concurry import CallLimit, LimitSet, RateLimit, ResourceLimit

from .raising import KINDS, Places, RaisingMapping, raises


@pytest.fixture
def places(segment_path: Path) -> Places:
    return Places.at(segment_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["add_reader", "remove_reader", "create_future"])
def test_a_loop_that_raises_leaves_nothing_taken(method: str, kind: type[BaseException], places: Places) -> None:
    loop = asyncio.SelectorEventLoop()
    kept = []

    async def acquire(**options: Any) -> BaseException | None:
        setattr(loop, method, raises(kind))
        try:
            permit = await places.plain.acquire_async(**options)
        except BaseException as error:
            return error
        finally:
            delattr(loop, method)
        permit.release()
        return None

    kept.append(loop.run_until_complete(acquire()))
    places.assert_nothing_is_taken()
    with places.plain.acquire():
        kept.append(loop.run_until_complete(acquire(timeout=60 if method == "create_future" else 0.001)))
        assert places.segment.snapshot()["sets"][1]["tickets"] == []
    places.assert_nothing_is_taken()
    assert any(isinstance(error, kind) for error in kept)
    loop.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["add_done_callback", "cancelled", "exception"])
def test_a_future_that_raises_when_it_is_asked_leaves_nothing_taken(
    method: str, kind: type[BaseException], places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    returned = type("Returned", (Future,), {method: raises(kind)})()
    work = places.plain.limited(lambda: returned)
    kept: list[BaseException] = []
    try:
        assert work() is returned
        assert places.segment.snapshot()["sets"][1]["holds"]
        returned.set_result(None)
    except (*KINDS,) as error:
        kept.append(error)
    places.assert_nothing_is_taken()
    assert kept or caplog.records


class RaisingAmount(Fraction):
    """An amount that raises when it is read for the nth time."""

    kind: type[BaseException]
    reads: int

    def _read(self) -> None:
        self.reads -= 1
        if self.reads == 0:
            raise self.kind("the program's")

    def __float__(self) -> float:
        self._read()
        return 1.0

    def __gt__(self, other: object) -> bool:
        self._read()
        return float(1) > other  # type: ignore[operator]


def _amounts(kind: type[BaseException]) -> Iterator[RaisingAmount]:
    for reads in range(1, 12):
        amount = RaisingAmount(1)
        amount.kind, amount.reads = kind, reads
        yield amount


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["acquire", "try_acquire", "async_acquire"])
def test_amounts_of_concurry_that_raise_leave_nothing_taken(verb: str, kind: type[BaseException]) -> None:
    limits = LimitSet(
        [
            CallLimit(window=3600, capacity=100),
            RateLimit(key="tokens", window=3600, capacity=1000),
            ResourceLimit(key="places", capacity=1),
        ]
    )
    kept = []

    def work(amount: Any) -> None:
        requested = {"call_count": amount, "tokens": amount}
        acquired = getattr(limits, verb)(requested)
        with asyncio.run(acquired) if verb == "async_acquire" else acquired as acquisition:
            acquisition.update({"call_count": amount, "tokens": amount})

    for amount in _amounts(kind):
        try:
            work(amount)
        except (kind, RuntimeError) as error:
            kept.append(error)
        with limits.try_acquire({"tokens": 1}) as free:
            assert free.successful
            free.update({"tokens": 1})
    assert kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["acquire", "try_acquire", "async_acquire"])
def test_a_configuration_of_concurry_that_raises_leaves_nothing_taken(verb: str, kind: type[BaseException]) -> None:
    limits = LimitSet([ResourceLimit(key="places", capacity=1)])
    limits.config = RaisingMapping(kind)  # type: ignore[assignment]
    ask: Callable[[], Any] = getattr(limits, verb)
    with pytest.raises(kind) as kept:
        asyncio.run(ask()) if verb == "async_acquire" else ask()
    limits.config = {}
    with limits.try_acquire() as free:
        assert free.successful
    assert kept.value


@pytest.mark.parametrize("has_to_wait", [False, True])
@pytest.mark.parametrize("steps", range(8))
def test_a_task_that_is_cancelled_at_any_step_leaves_nothing_taken(
    steps: int, has_to_wait: bool, places: Places
) -> None:
    async def work() -> None:
        async with places.plain.acquire_async():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def cancelled() -> asyncio.Task[None]:
        permit = places.plain.try_acquire() if has_to_wait else None
        task = asyncio.ensure_future(work())
        for step in range(steps):
            if permit is not None and step == 2:
                permit.release()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if permit is not None:
            permit.release()
        return task

    # With the task, its exception and the frames of its traceback are kept.
    kept = asyncio.run(cancelled())
    places.assert_nothing_is_taken()
    assert kept.done()
