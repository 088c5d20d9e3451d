"""One script of calls, two libraries, the same results, errors and warnings."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
import threading
import time

import pytest
from both_concurries import (
    ALGORITHMS,
    REFUNDING,
    TAKES_FRACTIONS,
    assert_same,
    calls,
    original,
    ours,
    rate,
)
from conftest import TIMEOUT

MODES = ["sync", "asyncio", "thread"]


def mixed(library, algorithm="TokenBucket", **options):
    return library.LimitSet(
        limits=[
            calls(library, 5, algorithm),
            rate(library, "tokens", 16, algorithm),
            library.ResourceLimit(key="connections", capacity=4),
        ],
        **options,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared", [False, True])
def test_takes_and_gives_back_the_same_in_each_mode(mode, shared):
    def script(library, note):
        limits = mixed(library, shared=shared, mode=mode)
        first = note(lambda: limits.acquire({"tokens": 8, "connections": 2}))
        second = note(lambda: limits.try_acquire({"tokens": 8}))
        note(lambda: limits.try_acquire({"tokens": 1}))
        note(limits.get_stats)
        note(lambda: first.update({"tokens": 3}))
        note(first.release)
        note(limits.get_stats)
        note(lambda: second.update({"tokens": 8}))
        note(second.release)
        note(second.release)
        note(limits.get_stats)

    assert_same(script)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refunds_what_the_algorithm_refunds(algorithm):
    def script(library, note):
        limits = mixed(library, algorithm)
        for used in (8, 0, 3):
            with limits.acquire({"tokens": 8, "call_count": 2}, timeout=0) as acquisition:
                note(lambda used=used: acquisition.update({"tokens": used, "call_count": 1}))
            note(limits.get_stats)
            if algorithm not in REFUNDING:
                break
        note(lambda: limits.try_acquire({"tokens": 8}))
        note(lambda: limits.try_acquire({"tokens": 9}))

    assert_same(script)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_admits_up_to_the_capacity_and_no_more(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 8, algorithm)])
        kept = [note(lambda: limits.try_acquire({"tokens": 3})) for _ in range(3)]
        kept.append(note(lambda: limits.try_acquire({"tokens": 2})))
        kept.append(note(lambda: limits.try_acquire({"tokens": 1})))
        kept.append(note(lambda: limits.try_acquire({"tokens": 0})))
        note(limits.get_stats)

    assert_same(script)


def test_takes_calls_and_resources_once_where_they_are_not_named():
    def script(library, note):
        limits = mixed(library)
        kept = [
            note(lambda: limits.try_acquire({"tokens": 1})),
            note(lambda: limits.try_acquire({"connections": 3})),
        ]
        kept.append(note(lambda: limits.try_acquire({"call_count": 2})))
        note(limits.get_stats)
        plain = library.LimitSet(limits=[calls(library, 2), library.ResourceLimit(key="connections", capacity=2)])
        kept += [note(lambda: plain.acquire()), note(lambda: plain.try_acquire({})), note(plain.try_acquire)]
        note(plain.get_stats)
        return kept

    assert_same(script)


def test_leaves_rate_limits_that_are_not_named_alone():
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 4, "GCRA"), rate(library, "other", 4, "TokenBucket")])
        with limits.acquire({"other": 4}) as acquisition:
            note(lambda: acquisition.update({"other": 4}))
        note(lambda: limits.try_acquire({"tokens": 4}))
        note(lambda: limits.try_acquire({"tokens": 0, "other": 1}))
        note(limits.get_stats)

    assert_same(script)


def test_takes_all_or_nothing():
    def script(library, note):
        limits = mixed(library)
        held = note(lambda: limits.acquire({"tokens": 1, "connections": 4}))
        note(lambda: limits.try_acquire({"tokens": 8}))
        note(limits.get_stats)
        return held

    assert_same(script)


def test_refuses_an_empty_request_where_a_rate_needs_an_amount():
    def script(library, note):
        limits = mixed(library)
        note(limits.acquire)
        note(lambda: limits.try_acquire({}))
        note(lambda: asyncio.run(limits.async_acquire()))
        note(limits.get_stats)

    assert_same(script)


def test_refuses_what_is_above_the_capacity_at_once():
    def script(library, note):
        limits = mixed(library)
        for request in ({"tokens": 17}, {"tokens": 1, "connections": 5}, {"tokens": 1, "call_count": 6}):
            note(lambda request=request: limits.acquire(request))
            note(lambda request=request: limits.try_acquire(request))
            note(lambda request=request: asyncio.run(limits.async_acquire(request)))
        note(limits.get_stats)

    assert_same(script)


def test_refuses_amounts_that_are_no_numbers():
    def script(library, note):
        limits = mixed(library)
        note(lambda: limits.try_acquire({"tokens": "3"}))
        note(lambda: limits.try_acquire({"tokens": None}))
        note(limits.get_stats)
        with limits.acquire({"tokens": 2}) as acquisition:
            note(lambda: acquisition.update({"tokens": "1"}))
            note(lambda: acquisition.update({"tokens": 1}))

    assert_same(script, keys=())


def test_times_out_where_nothing_comes_back():
    def script(library, note):
        limits = mixed(library)
        held = limits.acquire({"tokens": 1, "connections": 4})
        for timeout in (0, -1, 0.05):
            note(lambda timeout=timeout: limits.acquire({"tokens": 1}, timeout=timeout))
            note(lambda timeout=timeout: asyncio.run(limits.async_acquire({"tokens": 1}, timeout=timeout)))
        note(limits.get_stats)
        return held

    assert_same(script, keys=())


def test_demands_an_update_of_each_rate_that_was_taken():
    def script(library, note):
        limits = mixed(library)
        acquisition = limits.acquire({"tokens": 4, "call_count": 2})
        note(acquisition.release)
        note(lambda: acquisition.update({"call_count": 0}))
        note(acquisition.release)
        note(lambda: acquisition.update({"tokens": 1}))
        note(acquisition.release)
        note(limits.get_stats)
        note(lambda: acquisition.update({"tokens": 1}))
        note(lambda: acquisition.acquisitions["tokens"].update(1))

    assert_same(script)


def test_demands_no_update_of_single_calls_and_resources():
    def script(library, note):
        limits = library.LimitSet(limits=[calls(library, 9), library.ResourceLimit(key="connections", capacity=4)])
        for request in (None, {"connections": 3}, {"call_count": 1}, {"call_count": 0}):
            acquisition = limits.acquire(request)
            note(acquisition.release)
        note(limits.get_stats)

    assert_same(script)


def test_does_not_count_an_update_of_a_part_as_one_of_the_whole():
    def script(library, note):
        limits = mixed(library)
        acquisition = limits.acquire({"tokens": 4})
        note(lambda: acquisition.acquisitions["tokens"].update(2))
        note(acquisition.release)
        note(lambda: acquisition.update({"tokens": 3}))
        note(acquisition.release)
        note(limits.get_stats)

    assert_same(script)


def test_lets_the_last_update_count():
    def script(library, note):
        limits = mixed(library)
        acquisition = limits.acquire({"tokens": 8})
        for used in (8, 0, 5):
            note(lambda used=used: acquisition.update({"tokens": used}))
            note(limits.get_stats)
        note(acquisition.release)
        note(limits.get_stats)

    assert_same(script)


def test_checks_usage_of_calls():
    def script(library, note):
        limits = library.LimitSet(limits=[calls(library, 9, "TokenBucket")])
        single = limits.acquire()
        for used in (0, 2, -1, 1):
            note(lambda used=used: single.update({"call_count": used}))
        note(single.release)
        batch = limits.acquire({"call_count": 4})
        for used in (-1, 5, 3):
            note(lambda used=used: batch.update({"call_count": used}))
        note(batch.release)
        note(limits.get_stats)

    assert_same(script)


def test_refuses_negative_usage_and_warns_of_too_much():
    def script(library, note):
        limits = mixed(library)
        acquisition = limits.acquire({"tokens": 4})
        note(lambda: acquisition.update({"tokens": -1}))
        note(lambda: acquisition.update({"tokens": 5}))
        note(lambda: acquisition.update({"connections": 3}))
        note(lambda: acquisition.update({"tokens": 4}))
        note(acquisition.release)
        note(limits.get_stats)

    assert_same(script, keys=("nonesuch",))


def test_warns_of_each_unknown_key_once():
    def script(library, note):
        limits = mixed(library)
        for _ in range(2):
            acquisition = note(lambda: limits.acquire({"nonesuch": 3, "tokens": 1}))
            note(lambda acquisition=acquisition: acquisition.update({"tokens": 1, "nonesuch": 1}))
            note(lambda acquisition=acquisition: acquisition.update({"nonesuch": 1}))
            note(acquisition.release)
        held = note(lambda: limits.try_acquire({"other": 3}))
        note(limits.get_stats)
        return held

    assert_same(script, keys=("nonesuch", "other"))


def test_takes_nothing_where_all_keys_are_unknown():
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 4, "GCRA")])
        acquisition = note(lambda: limits.acquire({"nonesuch": 3}))
        note(acquisition.release)
        note(limits.get_stats)

    assert_same(script, keys=("nonesuch",))


def test_gives_back_when_the_block_ends_by_an_exception():
    def script(library, note):
        limits = mixed(library)

        def block():
            with limits.acquire({"tokens": 4, "connections": 3}) as acquisition:
                acquisition.update({"tokens": 1})
                raise KeyError("tokens")

        note(block)
        note(limits.get_stats)

    assert_same(script)


def test_raises_for_a_missing_update_also_where_the_block_failed():
    def script(library, note):
        limits = mixed(library)

        def block():
            with limits.acquire({"tokens": 4}):
                raise KeyError("connections")

        note(block)

    assert_same(script)


def test_serves_tasks_as_it_serves_threads():
    def script(library, note):
        limits = mixed(library, shared=True, mode="asyncio")

        async def take(used):
            async with await limits.async_acquire({"tokens": 4}, timeout=5) as acquisition:
                acquisition.update({"tokens": used})
                return acquisition.successful

        async def all_of_them():
            return [await take(used) for used in (4, 0, 2)]

        note(lambda: asyncio.run(all_of_them()))
        note(limits.get_stats)

    assert_same(script)


def test_admits_everything_without_limits():
    def script(library, note):
        for mode in (*MODES, "process"):
            limits = library.LimitSet(limits=[], shared=True, mode=mode, config={"region": "here"})
            acquisition = note(lambda limits=limits: limits.acquire({"nonesuch": 3}))
            note(lambda acquisition=acquisition: acquisition.update({"nonesuch": 3}))
            note(acquisition.release)
            note(limits.try_acquire)
            note(lambda limits=limits: asyncio.run(limits.async_acquire()))
            note(limits.get_stats)
            note(lambda limits=limits: pickle.loads(pickle.dumps(limits)).config)

    assert_same(script, keys=("nonesuch",))


def test_gives_each_acquisition_a_copy_of_the_configuration():
    def script(library, note):
        config = {"region": "here", "weights": [1]}
        limits = mixed(library, config=config)
        acquisition = limits.acquire({"tokens": 1})
        note(lambda: acquisition.config)
        acquisition.config["region"] = "there"
        note(lambda: limits.acquire({"tokens": 1}))
        note(lambda: config)
        note(lambda: limits.config)
        note(lambda: mixed(library).acquire({"tokens": 1}).config)

    assert_same(script)


def test_says_which_modes_there_are():
    def script(library, note):
        for mode in ("Sync", "synchronous", "Threads", "async", "auto", "nonesuch"):
            note(lambda mode=mode: bool(mixed(library, mode=mode)))
        for mode in ("process", "procs", "ray"):
            note(lambda mode=mode: mixed(library, mode=mode))
        note(lambda: library.LimitSet(limits=[library.ResourceLimit(key="tokens", capacity=1)] * 2))
        note(lambda: library.LimitSet(limits=None))

    assert_same(script)


def test_finds_limits_by_key():
    def script(library, note):
        limits = mixed(library)
        note(lambda: limits["tokens"].capacity)
        note(lambda: limits["call_count"].key)
        note(lambda: limits["nonesuch"])
        note(lambda: [limit.key for limit in limits.limits])
        held = limits.acquire({"tokens": 10, "connections": 3})
        for key, amount in (("tokens", 6), ("tokens", 7), ("connections", 1), ("connections", 2)):
            note(lambda key=key, amount=amount: limits[key].can_acquire(amount))
        note(lambda: limits["tokens"].get_stats())
        note(lambda: limits["connections"].get_stats())
        return held

    assert_same(script)


def test_checks_limits_when_they_are_declared():
    def script(library, note):
        make = {
            "no capacity": lambda: rate(library, "tokens", 0, "GCRA"),
            "negative": lambda: rate(library, "tokens", -1, "GCRA"),
            "no window": lambda: rate(library, "tokens", 1, "GCRA", window=0),
            "no algorithm": lambda: rate(library, "tokens", 1, "nonesuch"),
            "no resource": lambda: library.ResourceLimit(key="tokens", capacity=0),
            "half a resource": lambda: library.ResourceLimit(key="tokens", capacity=1.5),
            "a key that is not a string": lambda: library.ResourceLimit(key=3, capacity=1),
        }
        for declare in make.values():
            note(declare)
        limit = rate(library, "tokens", 4, "token")
        note(lambda: setattr(limit, "capacity", 5))
        note(lambda: limit.capacity)
        note(lambda: limit == rate(library, "tokens", 4, "Token Bucket"))
        note(lambda: limit == rate(library, "tokens", 5, "token"))
        note(lambda: {limit: 1}[rate(library, "tokens", 4, "token_bucket")])
        note(lambda: pickle.loads(pickle.dumps(limit)) == limit)
        note(lambda: copy.deepcopy(limit) == limit)
        note(limit.get_stats)
        note(lambda: library.CallLimit(key="mine", capacity=1, window_seconds=3).key)

    assert_same(script, keys=())


@pytest.mark.parametrize("name", ["RateLimitAlgorithm", "LoadBalancingAlgorithm", "PollingAlgorithm", "ExecutionMode"])
def test_spells_its_enumerations_the_same(name):
    def script(library, note):
        enumeration = getattr(library, name)
        note(lambda: [member.name for member in enumeration])
        note(lambda: [member.value for member in enumeration])
        note(lambda: [str(member) for member in enumeration])
        for member in getattr(original, name):
            for spelling in (member.name, *member.aliases, member.name.upper(), f" {member.name}- "):
                note(lambda spelling=spelling: enumeration(spelling).name)
        note(lambda: enumeration("nonesuch"))

    assert_same(script, keys=())


@pytest.mark.skipif(not TAKES_FRACTIONS, reason="the original counts in whole tokens before 0.13.2")
@pytest.mark.parametrize("algorithm", ["TokenBucket", "FixedWindow", "GCRA"])
def test_counts_fractions(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 2.5, algorithm)])
        kept = [
            note(lambda: limits.try_acquire({"tokens": 1})),
            note(lambda: limits.try_acquire({"tokens": 0.75})),
        ]
        kept += [
            note(lambda: limits.try_acquire({"tokens": 1})),
            note(lambda: limits.try_acquire({"tokens": 0.75})),
        ]
        note(limits.get_stats)
        note(lambda: limits.try_acquire({"tokens": 2.75}))
        kept[0].update({"tokens": 0.5})
        kept[0].release()
        note(limits.get_stats)

    assert_same(script)


@pytest.mark.skipif(not TAKES_FRACTIONS, reason="the original counts in whole tokens before 0.13.2")
@pytest.mark.parametrize("algorithm", ["LeakyBucket", "SlidingWindow"])
def test_takes_no_fractions_where_each_token_is_logged(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 2.5, algorithm)])
        note(lambda: limits.try_acquire({"tokens": 0.5}))
        return [note(lambda: limits.try_acquire({"tokens": 1.0})) for _ in range(3)]

    assert_same(script, keys=())


@pytest.mark.skipif(not TAKES_FRACTIONS, reason="the original has no unbounded limits before 0.13.2")
@pytest.mark.parametrize("algorithm", REFUNDING)
def test_admits_everything_where_the_capacity_is_infinite(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", math.inf, algorithm)])
        note(lambda: limits.try_acquire({"tokens": 10**9}).successful)
        note(lambda: limits.try_acquire({"tokens": 1.5}).successful)

    assert_same(script)


@pytest.mark.skipif(not TAKES_FRACTIONS, reason="the original names windows from 0.13.2 on")
def test_knows_the_words_for_windows():
    words = [word for member in getattr(original, "RateWindow", ()) for word in (member.name, *member.aliases)]

    def script(library, note):
        for word in words:
            note(lambda word=word: library.RateLimit(key="tokens", capacity=1, window=word).window)
            note(lambda word=word: library.RateLimit(key="tokens", capacity=1, per=word.upper()).window)
        note(lambda: [member.to_seconds() for member in library.RateWindow])
        note(lambda: library.RateLimit(key="tokens", capacity=1, window="nonesuch"))
        note(lambda: library.RateLimit(key="tokens", capacity=1, window=60, per=60))
        note(lambda: library.RateLimit(key="tokens", capacity=1, window=True))
        note(lambda: library.RateLimit(key="tokens", capacity=1, window_seconds=60).window)

    assert len(words) > 5
    assert_same(script, keys=())


def test_takes_the_algorithm_of_the_defaults():
    def script(library, note):
        note(lambda: library.RateLimit(key="tokens", capacity=1, window_seconds=60).algorithm.name)
        with library.temp_config(global_rate_limit_algorithm=library.RateLimitAlgorithm.GCRA):
            note(lambda: library.RateLimit(key="tokens", capacity=1, window_seconds=60).algorithm.name)
        note(lambda: library.RateLimit(key="tokens", capacity=1, window_seconds=60).algorithm.name)
        with library.temp_config(global_polling_fixed_interval=0.5, global_limit_set_acquire_sleep=0.001):
            note(lambda: mixed(library).try_acquire({"tokens": 1}).successful)

    assert_same(script)


# These take time: each waits for a condition, with a generous deadline.

WINDOW = 0.5


def in_time(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            return False
        # Not sooner: the original's leaky bucket does not drain while it is asked often.
        time.sleep(WINDOW / 2)
    return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_admits_again_once_time_has_passed(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 4, algorithm, window=WINDOW)])
        held = limits.try_acquire({"tokens": 4})
        note(lambda: held.successful)
        note(lambda: in_time(lambda: limits.try_acquire({"tokens": 4}).successful))

    assert_same(script)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "LeakyBucket"])
def test_waits_until_time_has_passed(algorithm):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", 4, algorithm, window=WINDOW)])
        held = limits.acquire({"tokens": 4})
        note(lambda: limits.acquire({"tokens": 4}, timeout=TIMEOUT).successful)
        note(lambda: asyncio.run(limits.async_acquire({"tokens": 4}, timeout=TIMEOUT)).successful)
        return held

    assert_same(script)


def test_requests_leave_a_sliding_window_one_by_one():
    window = 0.5

    def attempt(library):
        # Each attempt begins at a different distance from a multiple of half a second.
        time.sleep(window / 3)
        limits = library.LimitSet(limits=[rate(library, "tokens", 4, "SlidingWindow", window=window)])
        limits.acquire({"tokens": 2})
        first = time.monotonic()
        time.sleep(window / 2)
        second = time.monotonic()
        limits.acquire({"tokens": 2})
        time.sleep(max(0.0, first + window - time.monotonic()))
        half = limits["tokens"].can_acquire(2), limits["tokens"].can_acquire(3)
        # If the second two had time to drain as well, the attempt proves nothing.
        return half if time.monotonic() < second + window else None

    def script(library, note):
        outcomes = filter(None, (attempt(library) for _ in range(100)))
        note(lambda: [next(outcomes) for _ in range(3)])

    assert_same(script)


def test_waits_until_another_thread_releases():
    def script(library, note):
        limits = library.LimitSet(
            limits=[library.ResourceLimit(key="connections", capacity=1)], shared=True, mode="thread"
        )
        held = limits.acquire()
        outcomes: list[bool] = []
        waiting = threading.Thread(target=lambda: outcomes.append(limits.acquire(timeout=TIMEOUT).successful))
        waiting.start()
        note(lambda: limits.try_acquire().successful)
        held.release()
        waiting.join(TIMEOUT)
        note(lambda: outcomes)

    assert_same(script)


def test_the_original_is_not_imported_by_ours():
    import subprocess
    import sys

    program = "import sys, shmlimit.concurry; sys.exit('concurry' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert ours is not original
