"""Waiting in the queue with threads."""

import pickle
import signal
import threading
import time
from datetime import timedelta

import pytest
from conftest import TIMEOUT, queued, wait_until

import shmlimit as sl


def test_who_waits_gets_what_is_released(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    held = limits.acquire()
    got = []
    waiter = threading.Thread(target=lambda: got.append(limits.acquire(timeout=TIMEOUT)))
    waiter.start()
    wait_until(lambda: queued(limits) == 1, "the waiter is in the queue")
    assert not limits.try_acquire()
    held.release()
    waiter.join(TIMEOUT)
    assert got[0].taken == {"in_flight": 1}


def test_a_timeout_is_a_timeout_error_that_says_what_bound(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    held = limits.acquire()
    for timeout in [0, 0.01, timedelta(milliseconds=10)]:
        with pytest.raises(TimeoutError) as raised:
            limits.acquire(timeout=timeout)
        assert isinstance(raised.value, sl.AcquireTimeout)
        assert (raised.value.binding, raised.value.reason, raised.value.set_name) == ("in_flight", "concurrency", "set")
        assert not raised.value.refusal
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (type(copied), str(copied), copied.binding) == (sl.AcquireTimeout, str(raised.value), "in_flight")
    assert queued(limits) == 0
    held.release()


def test_a_wait_for_time_alone_ends_when_it_has_come(open_set):
    limits = open_set(sl.Calls("requests", 1, 0.2))
    limits.acquire()
    began = time.monotonic()
    limits.acquire(timeout=TIMEOUT)
    assert time.monotonic() - began > 0.1


def test_a_full_line_refuses_at_once(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1), waiters=0)
    with limits.acquire(), pytest.raises(sl.Refused) as raised:
        limits.acquire(timeout=TIMEOUT)
    assert raised.value.reason == "queue_full"
    assert not isinstance(raised.value, TimeoutError)


def test_threads_never_hold_more_than_there_is_and_all_are_served(open_set):
    limits = open_set(sl.Concurrency("in_flight", 3))
    holding, most = 0, 0
    lock = threading.Lock()

    def work():
        nonlocal holding, most
        for _ in range(20):
            with limits.acquire(timeout=TIMEOUT):
                with lock:
                    holding += 1
                    most = max(most, holding)
                time.sleep(0.0002)
                with lock:
                    holding -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert 1 <= most <= 3
    assert len([limits.try_acquire() for _ in range(3)]) == 3


def test_each_key_has_a_line_of_its_own(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1), keyed=100)
    with limits.acquire(key="ann"):
        with pytest.raises(sl.AcquireTimeout):
            limits.acquire(key="ann", timeout=0.01)
        with limits.acquire(key="bob", timeout=TIMEOUT):
            pass


def test_a_pool_is_indexed_and_begins_at_the_member_of_its_worker(segment_path):
    names = ["eu", "us", "asia"]
    segment = sl.open(segment_path, [sl.LimitSet(name, [sl.Calls("calls", 9, "1h")]) for name in names])
    pool = sl.Pool([segment[name] for name in names], worker_index=4)
    assert [each.name for each in pool] == names
    assert (pool[0].name, pool[-1].name, len(pool)) == ("eu", "asia", 3)
    with pytest.raises(IndexError):
        pool[3]
    with pytest.raises(TypeError):
        pool["eu"]
    assert [pool.try_acquire().set_name for _ in range(4)] == ["us", "asia", "eu", "us"]
    copied = pickle.loads(pickle.dumps(pool))
    assert copied.worker_index == 4
    assert copied.try_acquire().set_name == "us"


def test_a_pool_goes_round_and_fails_over(segment_path):
    regions = [sl.LimitSet(name, [sl.Concurrency("c", 1)], metadata={"region": name}) for name in ["eu", "us"]]
    segment = sl.open(segment_path, regions)
    pool = sl.Pool([segment["eu"], segment["us"]])
    permits = [pool.try_acquire(), pool.acquire(timeout=TIMEOUT)]
    assert sorted(permit.set_name for permit in permits) == ["eu", "us"]
    assert sorted(permit.metadata["region"] for permit in permits) == ["eu", "us"]
    assert not pool.try_acquire()
    with pytest.raises(sl.AcquireTimeout):
        pool.acquire(timeout=0.01)
    permits[0].release()
    failover = sl.Pool(list(pool.members), failover=True)
    assert failover.acquire(timeout=TIMEOUT).set_name == permits[0].set_name
    copied = pickle.loads(pickle.dumps(failover))
    assert (copied.members, copied.strategy, copied.failover) == (pool.members, "round_robin", True)
    assert len(copied) == 2
    with pytest.raises(ValueError, match="strategy"):
        sl.Pool(pool.members, "best")
    with pytest.raises(ValueError, match="pool"):
        sl.Pool([])


def test_a_limited_function_takes_a_permit_for_as_long_as_it_runs(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1), sl.Rate("tokens", 100, "1000h"), keyed=10)

    @limits.limited(costs=lambda user, size: {"tokens": size}, key=lambda user, size: user, timeout=0)
    def work(user, size):
        """Works."""
        assert not limits.try_acquire({"tokens": 1}, key=user)
        return size

    assert work("ann", 60) == 60
    assert (work.__name__, work.__doc__) == ("work", "Works.")
    with pytest.raises(sl.AcquireTimeout) as raised:
        work("ann", 60)
    assert raised.value.binding == "tokens"
    assert work("bob", 60) == 60


def test_a_limited_function_needs_no_arguments(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    @limits.limited
    def fails():
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fails()


def test_a_limited_generator_holds_its_permit_until_it_ends(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    @limits.limited
    def count():
        yield 1
        yield 2

    steps = count()
    assert limits.try_acquire()
    assert next(steps) == 1
    assert not limits.try_acquire()
    assert list(steps) == [2]
    assert limits.try_acquire()


def test_a_wait_that_a_handler_ends_charges_nothing(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1), sl.Calls("requests", 1000, "1000h"))
    held = limits.acquire()

    class Ended(Exception):
        pass

    def release_and_raise(signal_number, frame):
        held.release()
        raise Ended

    before = signal.signal(signal.SIGALRM, release_and_raise)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Ended):
            limits.acquire(timeout=TIMEOUT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert limits.peek({"requests": 0, "in_flight": 0})["requests"].remaining == 999
    assert limits.try_acquire()
