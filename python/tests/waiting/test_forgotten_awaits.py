"""Acquisitions in tasks that nobody awaits: nothing is taken, and a warning says so."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import warnings

import pytest

import shmlimit as sl


def _forget(acquire_async):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        acquire_async()
        gc.collect()
    return caught


def test_an_acquisition_that_is_dropped_unawaited_warns_as_a_coroutine_does(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    pool = sl.Pool([limits])
    for acquire_async in (limits.acquire_async, pool.acquire_async):
        (caught,) = _forget(acquire_async)
        assert caught.category is RuntimeWarning
        assert "never awaited" in str(caught.message)
        assert caught.filename == __file__


def test_the_warning_says_where_the_acquisition_was_made_if_memory_is_traced(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    tracemalloc.start(10)
    try:
        (caught,) = _forget(limits.acquire_async)
        assert any(frame.filename == __file__ for frame in tracemalloc.get_object_traceback(caught.source))
    finally:
        tracemalloc.stop()


def test_an_acquisition_is_neither_true_nor_false_before_it_is_awaited_or_entered(open_set):
    limits = open_set(sl.Concurrency("in_flight", 2))
    pool = sl.Pool([limits])

    async def main():
        for make in (limits.acquire_async, pool.acquire_async):
            acquisition = make()
            for ask in (bool, lambda it: not it, lambda it: it and 1):
                with pytest.raises(TypeError, match="await"):
                    ask(acquisition)
            permit = await acquisition
            assert acquisition
            permit.release()
            async with (entered := make()):
                assert entered

    asyncio.run(main())


def test_whatever_awaits_or_enters_an_acquisition_makes_no_warning(open_set):
    limits = open_set(sl.Concurrency("in_flight", 9))

    async def main():
        (await limits.acquire_async()).release()
        async with limits.acquire_async():
            pass
        with await limits.acquire_async():
            pass
        (await asyncio.wait_for(limits.acquire_async(), 60)).release()
        for permit in await asyncio.gather(*(limits.acquire_async() for _ in range(3))):
            permit.release()
        with pytest.raises(sl.RequestError):
            await limits.acquire_async({"in_flight": 10})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(one.message) for one in caught] == []
