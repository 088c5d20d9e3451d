"""Random scripts of calls: both libraries give the same results, errors and warnings."""

from __future__ import annotations

from typing import Any

from both_concurries import ALGORITHMS, assert_same, calls, rate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KEYS = ["tokens", "others", "call_count", "connections", "nonesuch"]

whole = st.integers(min_value=0, max_value=9)
# Exact in binary, so that the original's floats add up.
quarters = st.integers(min_value=0, max_value=36).map(lambda count: count / 4)


@st.composite
def limit_sets(draw: st.DrawFn) -> list[tuple[str, int, str]]:
    capacities = st.sampled_from([1, 2, 4, 8])
    kinds = draw(st.lists(st.sampled_from(KEYS[:-1]), min_size=1, max_size=4, unique=True))
    return [(key, draw(capacities), draw(st.sampled_from(ALGORITHMS))) for key in kinds]


def declared(library: Any, limits: list[tuple[str, int, str]]) -> list[Any]:
    made = []
    for key, capacity, algorithm in limits:
        if key == "call_count":
            made.append(calls(library, capacity, algorithm))
        elif key == "connections":
            made.append(library.ResourceLimit(key=key, capacity=capacity))
        else:
            made.append(rate(library, key, capacity, algorithm))
    return made


amounts = st.dictionaries(st.sampled_from(KEYS), whole, max_size=4)

steps = st.one_of(
    st.tuples(st.sampled_from(["acquire", "try_acquire"]), st.none() | amounts),
    # Which of the held acquisitions, and how much of each limit it used, in quarters of what it requested.
    st.tuples(st.just("update"), st.integers(0, 7), st.dictionaries(st.sampled_from(KEYS), st.integers(-1, 4))),
    st.tuples(st.sampled_from(["release", "leave", "fail"]), st.integers(0, 7)),
    st.tuples(st.just("stats")),
)


class Player:
    """Plays generated steps on one library, except for those in which the two are known to differ."""

    def __init__(self, library: Any, note: Any, limits: list[tuple[str, int, str]], **options: Any) -> None:
        self.note = note
        self.limits = library.LimitSet(limits=declared(library, limits), **options)
        self.held: list[Any] = []

    def play(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])

    def acquire(self, request: dict[str, int] | None) -> None:
        acquisition = self.note(lambda: self.limits.acquire(request, timeout=0))
        if acquisition is not None:
            self.held.append(acquisition)

    def try_acquire(self, request: dict[str, int] | None) -> None:
        acquisition = self.note(lambda: self.limits.try_acquire(request))
        # In this package, a refused request holds nothing; the original gives it back all the same.
        if acquisition is not None and acquisition.successful:
            self.held.append(acquisition)

    def update(self, which: int, quarters: dict[str, int]) -> None:
        if acquisition := self.pick(which):
            parts = acquisition.acquisitions
            # This package charges more than was requested; the original only warns.
            usage = {
                key: parts[key].requested * share // 4 if key in parts and share > 0 else share
                for key, share in quarters.items()
            }
            usage = {key: min(used, parts[key].requested) if key in parts else used for key, used in usage.items()}
            self.note(lambda: acquisition.update(usage))

    def release(self, which: int) -> None:
        if acquisition := self.pick(which):
            self.note(acquisition.release)

    def leave(self, which: int) -> None:
        if acquisition := self.complete(which):
            self.note(lambda: acquisition.__exit__(None, None, None))

    def fail(self, which: int) -> None:
        if acquisition := self.complete(which):

            def block() -> None:
                with acquisition:
                    raise KeyError("in the block")

            self.note(block)

    def stats(self) -> None:
        self.note(self.limits.get_stats)

    def pick(self, which: int) -> Any:
        return self.held[which % len(self.held)] if self.held else None

    def complete(self, which: int) -> Any:
        # A block that is left without its updates gives back in this package, but leaks in the original.
        acquisition = self.pick(which)
        if acquisition is not None:
            self.note(
                lambda: acquisition.update({key: part.requested for key, part in acquisition.acquisitions.items()})
            )
        return acquisition


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(limits=limit_sets(), steps=st.lists(steps, min_size=1, max_size=25), shared=st.booleans())
def test_plays_any_script_as_the_original_does(limits, steps, shared):
    def script(library, note):
        player = Player(library, note, limits, shared=shared, mode="thread", config={"steps": len(steps)})
        for step in steps:
            player.play(step)
        player.stats()

    assert_same(script, keys=tuple(KEYS))


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(["TokenBucket", "FixedWindow", "GCRA"]),
    capacity=st.sampled_from([1, 2, 8]),
    requests=st.lists(st.tuples(quarters, quarters), min_size=1, max_size=12),
)
def test_counts_fractions_as_the_original_does(algorithm, capacity, requests):
    def script(library, note):
        limits = library.LimitSet(limits=[rate(library, "tokens", capacity, algorithm)])
        for requested, used in requests:
            acquisition = note(lambda requested=requested: limits.try_acquire({"tokens": requested}))
            if acquisition is not None and acquisition.successful:
                acquisition.update({"tokens": min(used, requested)})
                note(acquisition.release)
            note(limits.get_stats)

    assert_same(script)


@settings(max_examples=40, deadline=None)
@given(
    members=st.lists(limit_sets(), min_size=1, max_size=3),
    start=st.integers(-3, 5),
    requests=st.lists(amounts, max_size=10),
)
def test_chooses_among_sets_as_the_original_does(members, start, requests):
    def script(library, note):
        sets = [
            library.LimitSet(limits=declared(library, limits), config={"member": number})
            for number, limits in enumerate(members)
        ]
        pool = library.LimitPool(limit_sets=sets, load_balancing="rr", worker_index=start)
        held = [note(lambda request=request: pool.try_acquire(request)) for request in requests]
        note(pool.get_stats)
        return held

    assert_same(script, keys=tuple(KEYS))
