"""Waiting in the queue with tasks: asyncio, uvloop, trio, and anyio on both."""

import asyncio
import contextlib
import gc
import os
import threading

import anyio
import anyio.lowlevel
import pytest
import trio
import uvloop
from conftest import TIMEOUT, queued, wait_until

import shmlimit as sl


def on_asyncio(main):
    return asyncio.run(main())


def on_uvloop(main):
    return uvloop.run(main())


def on_trio(main):
    return trio.run(main)


def on_anyio(main):
    return anyio.run(main, backend="asyncio")


def on_anyio_trio(main):
    return anyio.run(main, backend="trio")


every_loop = pytest.mark.parametrize("run", [on_asyncio, on_uvloop, on_anyio, on_anyio_trio])


@pytest.fixture
def collect():
    """Collects the garbage that the test leaves. What existed before, which is most objects, is not looked at again."""
    gc.collect()
    gc.freeze()
    yield gc.collect
    gc.unfreeze()


async def until(is_so):
    with anyio.fail_after(TIMEOUT):
        while not is_so():  # noqa: ASYNC110 (what is waited for is in shared memory)
            await anyio.sleep(0.001)


@every_loop
def test_tasks_never_hold_more_than_there_is_and_all_are_served(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 3))
    holding, most, served = 0, 0, 0

    async def work():
        nonlocal holding, most, served
        for _ in range(5):
            async with limits.acquire_async(timeout=TIMEOUT) as permit:
                assert permit.taken == {"in_flight": 1}
                holding += 1
                most = max(most, holding)
                await anyio.lowlevel.checkpoint()
                holding -= 1
                served += 1

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(work)

    run(main)
    assert (served, most) == (250, 3)
    assert queued(limits) == 0


@every_loop
def test_who_waits_is_cancelled_without_a_trace(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        held = await limits.acquire_async()
        async with anyio.create_task_group() as group:

            async def wait():
                await limits.acquire_async()

            for _ in range(3):
                group.start_soon(wait)
            await until(lambda: queued(limits) == 3)
            group.cancel_scope.cancel()
        assert queued(limits) == 0
        held.release()
        async with limits.acquire_async(timeout=TIMEOUT):
            pass

    run(main)
    assert limits.try_acquire()


@every_loop
def test_a_timeout_raises_and_leaves_the_line(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        async with limits.acquire_async():
            with pytest.raises(sl.AcquireTimeout) as raised:
                await limits.acquire_async(timeout=0.02)
            assert raised.value.binding == "in_flight"
            with pytest.raises(sl.AcquireTimeout):
                async with limits.acquire_async(timeout=0):
                    pass

    run(main)
    assert queued(limits) == 0


@every_loop
def test_a_wait_for_time_alone_ends_when_it_has_come(open_set, run):
    limits = open_set(sl.Calls("requests", 2, 0.1), sl.Concurrency("in_flight", 10))

    async def main():
        for _ in range(6):
            async with limits.acquire_async(timeout=TIMEOUT):
                pass

    run(main)


@every_loop
def test_what_is_granted_while_the_task_is_cancelled_is_given_back(open_set, collect, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        for _ in range(50):
            held = await limits.acquire_async()
            async with anyio.create_task_group() as group:

                async def wait():
                    await limits.acquire_async()

                group.start_soon(wait)
                await until(lambda: queued(limits) == 1)
                held.release()  # which grants it to the task
                group.cancel_scope.cancel()
            collect()
            answer = limits.try_acquire()
            assert answer, "the place was lost"
            answer.release()

    run(main)


@pytest.mark.parametrize("run", [on_asyncio, on_uvloop])
def test_wait_for_loses_nothing(open_set, collect, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        for round_number in range(60):
            held = limits.try_acquire()
            assert held
            asyncio.get_running_loop().call_later(0.0005 * (round_number % 5), held.release)
            try:
                permit = await asyncio.wait_for(limits.acquire_async(), 0.001)
            except (asyncio.TimeoutError, TimeoutError):
                pass
            else:
                permit.release()
            held.release()
            collect()
            await until(lambda: queued(limits) == 0)

    run(main)
    assert limits.try_acquire()


@every_loop
def test_one_handle_serves_one_loop_after_the_other(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        held = await limits.acquire_async()
        async with anyio.create_task_group() as group:

            async def wait():
                async with limits.acquire_async(timeout=TIMEOUT):
                    pass

            group.start_soon(wait)
            await until(lambda: queued(limits) == 1)
            held.release()

    for _ in range(3):
        run(main)


def test_loops_of_several_threads_share_a_line(open_set):
    limits = open_set(sl.Concurrency("in_flight", 2))
    served = []

    async def work():
        for _ in range(20):
            async with limits.acquire_async(timeout=TIMEOUT):
                await anyio.lowlevel.checkpoint()
                served.append(threading.get_ident())

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(work)

    threads = [threading.Thread(target=run, args=[main]) for run in [on_asyncio, on_uvloop, on_trio]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert len(served) == 300


@pytest.mark.parametrize("run", [on_asyncio, on_uvloop, on_trio])
def test_one_thread_sleeps_for_all_tasks(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        async with limits.acquire_async(), anyio.create_task_group() as group:
            before = None
            for count in [1, 50]:

                async def wait():
                    await limits.acquire_async()

                for _ in range(count):
                    group.start_soon(wait)
                await until(lambda count=count: queued(limits) >= count)
                threads = len(os.listdir("/proc/self/task"))
                assert before is None or threads == before
                before = threads
            group.cancel_scope.cancel()

    run(main)


def test_a_permit_is_a_context_manager_for_tasks_too(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        async with await limits.acquire_async() as permit:
            assert permit
            assert not limits.try_acquire()
        assert limits.try_acquire()

    on_asyncio(main)


def test_a_pool_is_waited_for_by_tasks(segment_path):
    segment = sl.open(segment_path, [sl.LimitSet(name, [sl.Concurrency("c", 1)]) for name in ["eu", "us"]])
    pool = sl.Pool([segment["eu"], segment["us"]], failover=True)

    async def main():
        held = [await pool.acquire_async() for _ in range(2)]
        assert {permit.set_name for permit in held} == {"eu", "us"}
        with pytest.raises(sl.AcquireTimeout):
            await pool.acquire_async(timeout=0.01)
        waiting = asyncio.ensure_future(pool.acquire_async(timeout=TIMEOUT)._acquire())
        await until(lambda: queued(segment["eu"]) + queued(segment["us"]) == 1)
        for permit in held:
            permit.release()
        assert (await waiting).taken == {"c": 1}

    on_asyncio(main)


def test_limited_coroutines_and_asynchronous_generators_hold_a_permit(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    @limits.limited
    async def work():
        assert not limits.try_acquire()
        return 5

    @limits.limited
    async def count():
        sent = yield 1
        yield sent

    async def main():
        assert await work() == 5
        steps = count()
        assert await steps.asend(None) == 1
        assert not limits.try_acquire()
        assert await steps.asend(7) == 7
        await steps.aclose()
        assert limits.try_acquire()

    on_asyncio(main)


def test_outside_of_an_event_loop_it_says_so(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    limits.acquire()
    coroutine = limits.acquire_async()._acquire()
    with pytest.raises(RuntimeError, match="event loop"):
        coroutine.send(None)
    wait_until(lambda: queued(limits) == 0, "it left the line")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_is_closed_and_forgotten_gives_up_the_places_of_its_tasks(open_set, new_loop):
    limits = open_set(sl.Concurrency("in_flight", 1))
    held = limits.try_acquire()

    def wait_and_close():
        loop = new_loop()
        task = loop.create_task(limits.acquire_async()._acquire())
        loop.run_until_complete(asyncio.sleep(0.01))
        assert queued(limits) == 1
        task._log_destroy_pending = False
        loop.close()

    wait_and_close()
    held.release()
    gc.collect()
    limits.acquire(timeout=TIMEOUT).release()


@every_loop
def test_one_acquisition_serves_several_tasks(open_set, run):
    limits = open_set(sl.Concurrency("in_flight", 2), sl.Rate("tokens", 100, 3600))
    acquisition = limits.acquire_async({"tokens": 2})
    first_left = []

    async def first():
        async with acquisition:
            await until(lambda: len(acquisition._entered) == 2)
        first_left.append(True)

    async def second():
        await until(lambda: len(acquisition._entered) == 1)
        async with acquisition as permit:
            await until(lambda: first_left)
            permit.settle(tokens=1)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            group.start_soon(second)

    run(main)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_make_the_loop_of_its_parent_deaf(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        held = await limits.acquire_async()
        task = asyncio.ensure_future(limits.acquire_async(timeout=TIMEOUT))
        await until(lambda: queued(limits) == 1)
        child = os.fork()
        if child == 0:
            task.get_coro().close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 (the child ends at once)
        held.release()
        (await task).release()

    on_asyncio(main)


def test_an_error_reaches_the_limited_asynchronous_generator(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    seen = []

    @contextlib.asynccontextmanager
    @limits.limited
    async def transaction():
        try:
            yield 1
        except ValueError:
            seen.append("rolled back")

    async def main():
        async with transaction():
            raise ValueError
        assert limits.try_acquire()

    on_asyncio(main)
    assert seen == ["rolled back"]


def test_whatever_is_called_asynchronously_is_limited_so(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    class Worker:
        async def __call__(self):
            return bool(limits.try_acquire())

        @limits.limited
        @staticmethod
        async def work():
            return bool(limits.try_acquire())

        @limits.limited
        @classmethod
        async def work_of_class(cls):
            return cls, bool(limits.try_acquire())

    async def main():
        assert await limits.limited(Worker())() is False
        assert await Worker.work() is False
        assert await Worker.work_of_class() == (Worker, False)
        with pytest.raises(TypeError, match="coroutine"):
            limits.limited(lambda: Worker()())()

    on_asyncio(main)
    assert limits.try_acquire()
