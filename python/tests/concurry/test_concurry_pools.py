"""Pools: the same choices and errors as in the original, and pickles that start over."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from both_concurries import assert_same, rate


def regions(library, count=3, **options):
    return [
        library.LimitSet(limits=[rate(library, "tokens", 8, "GCRA")], config={"region": number}, **options)
        for number in range(count)
    ]


def test_takes_turns_from_its_place_on():
    def script(library, note):
        pool = library.LimitPool(limit_sets=regions(library), load_balancing="RoundRobin", worker_index=2)
        kept = [note(lambda: pool.try_acquire({"tokens": 2})) for _ in range(4)]
        kept.append(note(lambda: pool.acquire({"tokens": 1}, timeout=5)))
        kept.append(note(lambda: asyncio.run(pool.async_acquire({"tokens": 1}, timeout=5))))
        note(pool.get_stats)
        note(lambda: pool[0].get_stats())
        note(lambda: pool[-1]["tokens"].capacity)
        return kept

    assert_same(script)


def test_refuses_the_same_indices_and_declarations():
    def script(library, note):
        pool = library.LimitPool(limit_sets=regions(library))
        note(lambda: pool[3])
        note(lambda: pool["tokens"])
        note(lambda: pool[0:1])
        note(lambda: library.LimitPool(limit_sets=[]))
        note(lambda: library.LimitPool(limit_sets=["tokens"]))
        for algorithm in ("active", "LeastTotalLoad", "nonesuch"):
            note(lambda algorithm=algorithm: library.LimitPool(limit_sets=pool.limit_sets, load_balancing=algorithm))
        note(lambda: setattr(pool, "worker_index", 1))
        note(lambda: (str(pool.load_balancing), pool.worker_index, len(pool.limit_sets)))
        note(lambda: library.LimitPool(limit_sets=pool.limit_sets, load_balancing="rand").get_stats())
        with library.temp_config(global_limit_pool_load_balancing="random", global_limit_pool_worker_index=4):
            note(lambda: library.LimitPool(limit_sets=pool.limit_sets).get_stats())

    assert_same(script, keys=())


def test_starts_over_where_a_pickle_arrives():
    def script(library, note):
        pool = library.LimitPool(
            limit_sets=[library.LimitSet(limits=[], config={"region": number}) for number in range(3)], worker_index=1
        )
        note(pool.acquire)
        note(lambda: pickle.loads(pickle.dumps(pool)).acquire())
        note(lambda: pickle.loads(pickle.dumps(pool)).get_stats())

    assert_same(script)


@pytest.mark.parametrize("count", [1, 3])
def test_chooses_at_random_among_all(count):
    from shmlimit import concurry as ours

    pool = ours.LimitPool(limit_sets=regions(ours, count), load_balancing="random")
    # 3 sets out of 8: each is found within this many tries, except for one chance in 10^80.
    chosen = {pool.try_acquire({"tokens": 0}).config["region"] for _ in range(500)}
    assert chosen == set(range(count))


def test_pickles_share_the_sets_that_are_shared():
    from shmlimit import concurry as ours

    pool = ours.LimitPool(limit_sets=regions(ours, shared=True))
    copy = pickle.loads(pickle.dumps(pool))
    with pool.acquire({"tokens": 8}) as acquisition:
        assert not copy.try_acquire({"tokens": 8}).successful
        acquisition.update({"tokens": 0})
    assert pool.load_balancing is copy.load_balancing
    copy.try_acquire({"tokens": 0})
    assert pool[0].get_stats()["tokens"]["available_tokens"] == 8
