"""Messages have the words by which Concurry's own suite recognises them, and its names exist here."""

import asyncio
import math
import warnings

import pytest

original = pytest.importorskip("concurry")
from shmlimit import concurry as ours  # noqa: E402

BOTH = pytest.mark.parametrize("library", [original, ours], ids=["concurry", "shmlimit"])


def rate(library, capacity=10, algorithm="GCRA", key="tokens"):
    return library.RateLimit(key=key, window=3600, algorithm=algorithm, capacity=capacity)


def calls(library, capacity=10):
    return library.CallLimit(window=3600, algorithm="GCRA", capacity=capacity)


def places(library, capacity=2):
    return library.ResourceLimit(key="places", capacity=capacity)


def set_of(library, *limits, **options):
    return library.LimitSet(limits=list(limits), **options)


async def _async_timeout(library):
    limits = set_of(library, places(library, 1))
    with limits.acquire():
        await limits.async_acquire(timeout=0.01)


def _timeout(library):
    limits = set_of(library, places(library, 1))
    with limits.acquire():
        limits.acquire(timeout=0.01)


def _left_out(library):
    with set_of(library, calls(library)).acquire({"call_count": 5}):
        pass


def _updated_late(library):
    acquired = set_of(library, rate(library)).acquire({"tokens": 1})
    acquired.update({"tokens": 1})
    acquired.release()
    acquired.update({"tokens": 1})


ERRORS = [
    (lambda lib: lib.RateLimit(key="x", window=1, per=1, capacity=1), ValueError, "aliases"),
    (lambda lib: lib.RateLimit(key="x", window=1, window_seconds=1, capacity=1), ValueError, "window_seconds"),
    (lambda lib: lib.RateLimit(key="x", per=1, window_seconds=1, capacity=1), ValueError, "window_seconds"),
    (lambda lib: calls(lib).validate_usage(requested=1, used=2), ValueError, "implicit acquisition"),
    (lambda lib: calls(lib).validate_usage(requested=5, used=-1), ValueError, "cannot be negative"),
    (lambda lib: places(lib, 0), ValueError, "must be >= 1"),
    (lambda lib: set_of(lib, rate(lib), rate(lib)), ValueError, "Duplicate limit key"),
    (lambda lib: set_of(lib, rate(lib)).acquire(), ValueError, "Must specify requested amount for RateLimit"),
    (
        lambda lib: set_of(lib, rate(lib)).acquire({"tokens": 11}),
        ValueError,
        "exceeds capacity.*can never be fulfilled",
    ),
    (lambda lib: set_of(lib, places(lib)).acquire({"places": 3}), ValueError, "exceeds capacity.*places"),
    (lambda lib: set_of(lib, places(lib))["other"], KeyError, "Limit with key 'other' not found in LimitSet"),
    (
        lambda lib: set_of(lib, places(lib), mode="process"),
        ValueError,
        "Non-shared LimitSets cannot use mode='process'",
    ),
    (lambda lib: set_of(lib, places(lib), mode="none"), ValueError, "Could not find enum with value"),
    (
        lambda lib: set_of(lib, rate(lib, algorithm="LeakyBucket")).acquire({"tokens": 0.5}),
        ValueError,
        "requires an integer token count",
    ),
    (_timeout, TimeoutError, "Failed to acquire all limits within"),
    (lambda lib: asyncio.run(_async_timeout(lib)), TimeoutError, "Failed to acquire all limits within"),
    (_left_out, RuntimeError, "Not all limits in the LimitSet were updated.*call_count"),
    (_updated_late, RuntimeError, "Cannot update an already released"),
    (lambda lib: lib.LimitPool(limit_sets=[]), ValueError, "at least one LimitSet"),
    (
        lambda lib: lib.LimitPool(limit_sets=[set_of(lib, places(lib))], load_balancing="active"),
        ValueError,
        "Unsupported load balancing algorithm",
    ),
    (lambda lib: lib.LimitPool(limit_sets=[set_of(lib, places(lib))])["x"], TypeError, "must be integers.*not str"),
]


@BOTH
@pytest.mark.parametrize(("act", "error", "words"), ERRORS, ids=[words for _, _, words in ERRORS])
def test_errors_have_the_words_of_concurry(library, act, error, words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(error, match=words):
            act(library)


@BOTH
def test_warnings_have_the_words_of_concurry(library, caplog):
    limits = set_of(library, rate(library, algorithm="TokenBucket"), places(library))
    with limits.acquire({"tokens": 1, "typo": 1}) as acquired:
        acquired.update({"tokens": 2, "other": 1})
    text = caplog.text
    assert "Unknown limit key 'typo' in acquisition request" in text
    assert "Available limit keys: ['tokens', 'places']" in text
    assert "exceeds requested amount (1) for limit 'tokens'" in text
    assert "Cannot update limit 'other': not acquired in this LimitSet" in text
    assert "Available keys: ['tokens', 'places']" in text


@BOTH
def test_the_former_word_for_the_window_is_deprecated_where_it_is_written(library):
    for make in (lambda: library.RateLimit(key="x", window_seconds=60, capacity=1),):
        with pytest.warns(DeprecationWarning, match="window_seconds.*deprecated"):
            assert make().window == 60


def test_the_deprecation_names_the_file_of_the_caller():
    with pytest.warns(DeprecationWarning, match="window_seconds") as warned:
        ours.RateLimit(key="x", window_seconds=60, capacity=1)
    with pytest.warns(DeprecationWarning, match="window_seconds") as warned_of_calls:
        ours.CallLimit(window_seconds=60, capacity=1)
    assert [warning.filename for warning in [*warned, *warned_of_calls]] == [__file__, __file__]


@BOTH
@pytest.mark.parametrize(
    ("capacity", "window", "algorithm", "signature"),
    [
        (300, 60, "GCRA", "c300w60gcr"),
        (300.0, 60, "GCRA", "c300w60gcr"),
        (50_000, "daily", "TokenBucket", "c50000w86400tok"),
        (0.0001, 0.5, "SlidingWindow", "c0.0001w0.5sli"),
        (math.inf, 60, "GCRA", "cinfw60gcr"),
    ],
)
def test_the_signature_of_the_parameters(library, capacity, window, algorithm, signature):
    limit = library.RateLimit(key="x", capacity=capacity, window=window, algorithm=algorithm)
    assert limit.params_signature() == signature


def test_a_set_of_no_limits_has_a_class_of_its_own():
    empty = ours.LimitSet(limits=[], config={"region": "x"})
    assert isinstance(empty, ours.NoOpLimitSet)
    assert isinstance(empty, ours.ShmLimitSet)
    assert isinstance(original.LimitSet(limits=[]), type(original.LimitSet(limits=[], shared=True)))
    with empty.acquire({"anything": 5}) as acquired:
        assert acquired.config == {"region": "x"}
    assert not isinstance(ours.LimitSet(limits=[places(ours)]), ours.NoOpLimitSet)
    with pytest.raises(ValueError, match="Non-shared"):
        ours.LimitSet(limits=[], mode="process")


@pytest.mark.parametrize("algorithm", ["TokenBucket", "GCRA"])
@pytest.mark.parametrize("capacity", [1e-18, 1.5e-10, 0.1, 1e12, 1e15, 1e18, 12345678901.234567])
def test_a_capacity_of_any_size_that_can_be_counted_is_taken_whole(algorithm, capacity):
    limits = set_of(ours, rate(ours, capacity, algorithm))
    with limits.acquire({"tokens": capacity}, timeout=0) as acquired:
        assert acquired.successful
        assert not limits.try_acquire({"tokens": capacity}).successful
        acquired.update({"tokens": capacity})


@pytest.mark.parametrize("capacity", [1e-300, 1e-19, 1.5e-18, math.ulp(0)])
def test_a_capacity_that_is_too_fine_is_an_error_when_the_set_is_made(capacity):
    limit = rate(ours, capacity)
    assert limit.capacity == capacity
    with pytest.raises(ValueError, match="10\\^-18"):
        set_of(ours, limit)
