"""The intended differences from the original: each entry of the documentation's list, as this package behaves.

Where it is cheap, the original's behaviour is tested too, so that no entry outlives its reason.
"""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from both_concurries import ALGORITHMS, BOTH, calls, original, ours, rate
from conftest import TIMEOUT, queued, wait_until

import shmlimit


def usage_of(limits, key="connections"):
    return limits.get_stats()[key]["current_usage"]


def connections(library, capacity=2, **options):
    return library.LimitSet(limits=[library.ResourceLimit(key="connections", capacity=capacity)], **options)


@pytest.mark.parametrize(("library", "left"), [(original, -2), (ours, 0)], ids=["original", "ours"])
def test_what_was_refused_gives_nothing_back(library, left):
    limits = connections(library)
    held = limits.acquire({"connections": 1})
    with limits.try_acquire({"connections": 2}) as refused:
        assert not refused.successful
    held.release()
    assert usage_of(limits) == left


@pytest.mark.parametrize(("library", "left"), [(original, 1), (ours, 0)], ids=["original", "ours"])
def test_a_block_without_its_update_holds_nothing_any_more(library, left):
    limits = library.LimitSet(
        limits=[rate(library, "tokens", 8, "GCRA"), library.ResourceLimit(key="connections", capacity=2)]
    )
    with pytest.raises(RuntimeError, match="tokens"), limits.acquire({"tokens": 1}):
        pass
    assert usage_of(limits) == left


def test_a_block_that_fails_without_its_update_keeps_the_reason():
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 8, "GCRA")])
    with pytest.raises(RuntimeError) as raised, limits.acquire({"tokens": 1}):
        raise ZeroDivisionError
    assert isinstance(raised.value.__context__, ZeroDivisionError)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_usage_above_what_was_requested_is_charged(algorithm):
    def can_take_afterwards(library, amount):
        limits = library.LimitSet(limits=[rate(library, "tokens", 8, algorithm)])
        with limits.acquire({"tokens": 2}) as acquisition:
            acquisition.update({"tokens": 5})
        return limits.try_acquire({"tokens": amount}).successful

    assert can_take_afterwards(original, 6)
    assert can_take_afterwards(ours, 3)
    assert not can_take_afterwards(ours, 4)


def test_usage_above_the_capacity_is_paid_for_by_those_who_come_next():
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 8, "GCRA")])
    with limits.acquire({"tokens": 8}) as acquisition:
        acquisition.update({"tokens": 12})
    assert limits.get_stats()["tokens"]["available_tokens"] == 0
    assert not limits.try_acquire({"tokens": 1}).successful


def test_negative_amounts_are_errors():
    assert connections(original).try_acquire({"connections": -1}).successful
    for amount in (-1, -0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="connections"):
            connections(ours).try_acquire({"connections": amount})
        with pytest.raises(ValueError, match="connections"):
            connections(ours).acquire().update({"connections": amount})


def test_a_leaky_bucket_drains_while_it_is_watched():
    window = 0.5
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 4, "LeakyBucket", window=window)])
    assert limits.try_acquire({"tokens": 4}).successful

    def admitted():
        # Asks as often as possible: the original rounds down what has drained each time, and so never drains.
        return limits["tokens"].can_acquire(1)

    wait_until(admitted, "the bucket drained")


def test_the_original_s_leaky_bucket_does_not_drain_while_it_is_watched(monkeypatch):
    from concurry.core.algorithms import rate_limiting

    instant = [1000.0]
    monkeypatch.setattr(rate_limiting, "time", SimpleNamespace(time=lambda: instant[0]))
    limits = original.LimitSet(limits=[rate(original, "tokens", 4, "LeakyBucket", window=4.0)])
    assert limits.try_acquire({"tokens": 4}).successful
    for _ in range(100):
        instant[0] += 0.9
        assert not limits["tokens"].can_acquire(1)


def test_what_can_be_released_no_more_is_given_back():
    limits = connections(ours)
    limits.acquire({"connections": 2})
    gc.collect()
    assert usage_of(limits) == 0


def test_a_fixed_window_begins_with_its_first_use():
    window = 1.0
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 4, "FixedWindow", window=window)])
    began = time.monotonic()
    # Neither the passing of time nor asking begins a window.
    wait_until(lambda: limits["tokens"].can_acquire(4) and time.monotonic() > began + 0.9 * window, "time passed")
    assert limits.try_acquire({"tokens": 4}).successful
    used = time.monotonic()
    assert limits.acquire({"tokens": 1}, timeout=TIMEOUT).successful
    # The window of the first four lasted its full length; the original's would have ended moments after them.
    assert time.monotonic() - used > 0.9 * window


def test_a_limit_counts_for_each_of_its_sets():
    def second_of_two(library):
        limit = rate(library, "tokens", 8, "GCRA")
        first, second = library.LimitSet(limits=[limit]), library.LimitSet(limits=[limit])
        first.try_acquire({"tokens": 8})
        return second.try_acquire({"tokens": 8}).successful

    assert not second_of_two(original)
    assert second_of_two(ours)


def test_process_mode_refunds_and_obeys_the_algorithm():
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 8, "TokenBucket")], shared=True, mode="process")
    for _ in range(5):
        with limits.acquire({"tokens": 8}, timeout=0) as acquisition:
            acquisition.update({"tokens": 0})
    assert limits.get_stats()["tokens"]["algorithm"] == "token_bucket"


def test_ray_mode_needs_no_ray():
    limits = connections(ours, shared=True, mode="ray", mp_context="spawn")
    with limits.acquire():
        assert usage_of(limits) == 1


@pytest.mark.parametrize("mode", ["sync", "asyncio", "thread", "process", "ray"])
def test_shared_sets_pickle_in_every_mode(mode):
    limits = connections(ours, shared=True, mode=mode, config={"region": "here"})
    copy = pickle.loads(pickle.dumps(limits))
    with limits.acquire({"connections": 2}):
        assert not copy.try_acquire().successful
        assert usage_of(copy) == 2
    assert copy.try_acquire().config == {"region": "here"}
    assert (copy.mode, copy.shared, copy.path) == (limits.mode, True, limits.path)


def test_private_sets_pickle_as_sets_of_their_own():
    with pytest.raises(TypeError):
        pickle.dumps(connections(original))
    limits = connections(ours)
    held = limits.acquire({"connections": 2})
    copy = pickle.loads(pickle.dumps(limits))
    assert copy.try_acquire({"connections": 2}).successful
    assert not limits.try_acquire().successful
    held.release()


def test_a_private_set_leaves_no_file():
    limits = connections(ours)
    assert limits.path is None
    path = Path(limits._open.path)
    assert path.exists()
    with limits.acquire({"connections": 2}) as acquisition:
        assert not limits.try_acquire().successful
        del limits, acquisition.limit_set
        assert not path.exists()


def test_no_request_overtakes_the_queue():
    limits = connections(ours, capacity=2, shared=True, mode="thread")
    held = limits.acquire({"connections": 1})
    served = []

    def wait_for_both():
        with limits.acquire({"connections": 2}, timeout=TIMEOUT):
            served.append(True)

    waiting = threading.Thread(target=wait_for_both)
    waiting.start()
    wait_until(lambda: queued(shmlimit.open(limits.path)["limits"]) == 1, "the request for two is in the queue")
    # One place is free, but it is for the request that waits. The original admits small requests as long as they come.
    assert usage_of(limits) == 1
    assert not limits.try_acquire({"connections": 1}).successful
    held.release()
    waiting.join(TIMEOUT)
    assert served == [True]


def test_a_full_line_is_waited_for():
    limits = connections(ours, capacity=1, shared=True, mode="asyncio")
    waiters = 400

    async def take():
        async with await limits.async_acquire(timeout=TIMEOUT) as acquisition:
            return acquisition.successful

    async def all_at_once():
        held = limits.acquire()
        tasks = [asyncio.create_task(take()) for _ in range(waiters)]
        await asyncio.sleep(0)
        held.release()
        return await asyncio.gather(*tasks)

    assert asyncio.run(all_at_once()) == [True] * waiters


def test_a_timeout_says_what_bound():
    limits = connections(ours)
    held = limits.acquire({"connections": 2})
    with pytest.raises(TimeoutError) as raised:
        limits.acquire(timeout=0)
    assert isinstance(raised.value.__cause__, shmlimit.AcquireTimeout)
    assert raised.value.__cause__.binding == "connections"
    held.release()


@pytest.mark.parametrize("library", BOTH)
def test_a_misspelt_field_is_refused(library):
    error = TypeError if library is ours else ValueError
    with pytest.raises(error):
        library.ResourceLimit(key="connections", capacity=1, window_seconds=3)
    with pytest.raises(error):
        library.ResourceLimit(key="connections")


def test_no_algorithm_is_the_default_one():
    assert ours.RateLimit(key="tokens", capacity=1, window=1, algorithm=None).algorithm.name == "SlidingWindow"


def test_every_algorithm_may_be_without_bound():
    for algorithm in ALGORITHMS:
        limits = ours.LimitSet(limits=[rate(ours, "tokens", math.inf, algorithm)])
        with limits.acquire({"tokens": 10**12}) as acquisition:
            acquisition.update({"tokens": 1})
        assert limits.get_stats()["tokens"]["capacity"] == math.inf


def test_whole_floats_are_whole_amounts():
    limits = connections(ours)
    with limits.acquire({"connections": 2.0}):
        assert usage_of(limits) == 2
    with pytest.raises(TypeError, match="connections"):
        limits.try_acquire({"connections": 1.5})
    with pytest.raises(ValueError, match="call_count"):
        ours.LimitSet(limits=[calls(ours, 4, "GCRA")]).try_acquire({"call_count": 1.5})


def test_the_noise_of_binary_fractions_is_not_charged():
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 1, "FixedWindow")])
    for _ in range(10):
        assert limits.try_acquire({"tokens": 0.1}).successful
    assert not limits.try_acquire({"tokens": 0.000001}).successful
    more = ours.LimitSet(limits=[rate(ours, "tokens", 0.7, "FixedWindow")])
    assert more.try_acquire({"tokens": 0.1 + 0.2}).successful
    assert more.get_stats()["tokens"]["available"] == pytest.approx(0.4, abs=1e-12)


def test_what_is_finer_than_the_unit_is_charged_as_one():
    limits = ours.LimitSet(limits=[rate(ours, "tokens", 1, "FixedWindow")])
    assert limits.try_acquire({"tokens": 1e-7}).successful
    assert limits.get_stats()["tokens"]["available"] == pytest.approx(0.999999, abs=1e-12)


def test_a_set_has_at_most_sixteen_limits():
    limits = [ours.ResourceLimit(key=str(number), capacity=1) for number in range(17)]
    assert ours.LimitSet(limits=limits[:16]).acquire().successful
    with pytest.raises(ValueError, match="16"):
        ours.LimitSet(limits=limits)


def test_options_of_polling_change_nothing():
    limits = ours.LimitSet(limits=[ours.ResourceLimit(key="connections", capacity=1)], polling="adaptive")
    assert limits.polling is ours.PollingAlgorithm.Adaptive
    with ours.temp_config(global_polling_fixed_interval=3, global_rate_limiter_min_wait_time=3):
        assert limits.try_acquire().successful
    with pytest.raises(ValueError, match="num_retries"), ours.temp_config(global_num_retries=3):
        pass


def test_statistics_have_both_words_for_the_window():
    statistics = ours.LimitSet(limits=[rate(ours, "tokens", 1, "GCRA")]).get_stats()["tokens"]
    assert statistics["window"] == statistics["window_seconds"]


def test_members_of_the_original_s_enumerations_are_understood():
    limits = ours.LimitSet(
        limits=[ours.RateLimit(key="tokens", capacity=1, window=60, algorithm=original.RateLimitAlgorithm.GCRA)],
        mode=original.ExecutionMode.Threads,
    )
    assert limits["tokens"].algorithm is ours.RateLimitAlgorithm.GCRA
    assert limits.mode is ours.ExecutionMode.Threads
    pool = ours.LimitPool(limit_sets=[limits], load_balancing=original.LoadBalancingAlgorithm.Random)
    assert pool.load_balancing is ours.LoadBalancingAlgorithm.Random
