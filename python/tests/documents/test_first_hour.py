"""What a newcomer meets in the first hour: mistakes that are named, values that can be kept, blocks that do not run."""

import asyncio
import json
import os
import pickle
import re
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest

import shmlimit as sl

NAMED = sl.Calls("requests", 1, "1h", algorithm="gcra")


def test_the_body_of_a_with_never_runs_after_a_refusal(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    with limits.try_acquire():
        refusal = limits.try_acquire()
        assert not refusal
        with pytest.raises(sl.Refused) as raised, refusal:
            pytest.fail("the body ran without a permit")
        assert raised.value.refusal is refusal
        assert (raised.value.binding, raised.value.reason) == ("in_flight", "concurrency")


def test_the_body_of_an_async_with_never_runs_after_a_refusal(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))

    async def main():
        async with limits.try_acquire():
            with pytest.raises(sl.Refused, match="in_flight"):
                async with limits.try_acquire():
                    pytest.fail("the body ran without a permit")

    asyncio.run(main())
    assert limits.try_acquire()


@pytest.mark.parametrize("amount", [-1, 2**64])
def test_an_amount_that_cannot_be_is_an_invalid_amount(open_set, amount):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(sl.InvalidAmount, match=str(amount)):
        limits.try_acquire({"tokens": amount})


@pytest.mark.parametrize("timeout", [-1, -0.001, timedelta(seconds=-1)])
def test_a_negative_timeout_is_an_error_at_the_call(open_set, timeout):
    limits = open_set(NAMED)
    pool = sl.Pool([limits])
    for call in [limits.acquire, limits.acquire_async, limits.limited, pool.acquire, pool.acquire_async]:
        with pytest.raises(ValueError, match=r"timeout is .*: give seconds from 0"):
            call(timeout=timeout)
    limits.acquire(timeout=0)
    with pytest.raises(sl.AcquireTimeout):
        limits.acquire(timeout=0)


WRONG_TIMES = [("5s", TypeError), ([5], TypeError), (float("nan"), ValueError)]


@pytest.mark.parametrize(("given", "error"), WRONG_TIMES)
def test_what_is_no_time_is_named_wherever_one_is_given(open_set, given, error):
    celery, futures = pytest.importorskip("shmlimit.celery"), pytest.importorskip("shmlimit.futures")
    web = [pytest.importorskip(f"shmlimit.{name}") for name in ("asgi", "wsgi")]
    fastapi = pytest.importorskip("shmlimit.fastapi")
    limits = open_set(NAMED)
    pool = sl.Pool([limits])
    permit = limits.acquire({"requests": 0})
    calls = [
        *(lambda call=call: call(timeout=given) for call in (limits.acquire, limits.acquire_async, limits.limited)),
        *(lambda call=call: call(timeout=given) for call in (pool.acquire, pool.acquire_async)),
        lambda: limits.reserve(max_delay=given),
        lambda: limits.throttle(given),
        lambda: permit.throttled(given),
        lambda: permit.respect({"retry-after": "1"}, status=429, max_wait=given),
        lambda: sl.open(limits.path, lock_timeout=given),
        lambda: celery.limited(limits, timeout=given),
        lambda: futures.LimitedExecutor(None, limits, timeout=given),
        *(lambda each=each: each.LimitMiddleware(None, limits, timeout=given) for each in web),
        lambda: fastapi.Limited(limits, timeout=given),
    ]
    for call in calls:
        with pytest.raises(error, match=f"^{re.escape(repr(given))} is not a time: give seconds"):
            call()


def test_costs_that_are_only_used_later_are_looked_at_at_the_call(open_set):
    limits = open_set(NAMED)
    for call in [limits.acquire_async, sl.Pool([limits]).acquire_async]:
        with pytest.raises(TypeError, match="5 names no limits: give a mapping"):
            call(5)
    with pytest.raises(TypeError, match="5 names no limits: give a mapping"):
        limits.limited(costs=5)
    with pytest.raises(TypeError, match="5 is not a function: name what to take, as in limited\\(costs="):
        limits.limited(5)


def test_a_wait_that_ends_in_time_says_that_time_was_up(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    with limits.acquire():
        refusal = limits.try_acquire()
        with pytest.raises(TimeoutError, match=r"^time was up: ") as raised:
            limits.acquire(timeout=0)
    assert str(raised.value) == f"time was up: {refusal}"
    # Where it arrives, it says the same, and only once.
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_peek_without_the_cost_of_a_rate_names_what_needs_none(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(sl.CostRequired, match="forecast"):
        limits.peek()
    assert limits.forecast()["tokens"].spendable == 100
    assert limits.peek({"tokens": 1})["tokens"].admitted


@pytest.mark.parametrize("costs", [5, "tokens", [("tokens", 1)], {1: 1}])
def test_costs_that_name_no_limits_are_a_type_error_that_says_what_to_give(open_set, costs):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(TypeError, match="give a"):
        limits.try_acquire(costs)


def test_text_that_is_not_unicode_is_an_error_of_this_package(open_set, segment_path):
    limits = open_set(NAMED, keyed=10)
    with pytest.raises(sl.InvalidKey):
        limits.check(key="\ud800")
    with pytest.raises(sl.UnknownLimit):
        limits.check({"\ud800": 1}, key="ann")
    with pytest.raises(sl.UnknownName):
        sl.open(segment_path)["\ud800"]
    with pytest.raises(sl.DeclarationError):
        sl.open(segment_path, sl.LimitSet("\ud800", [NAMED]))


def test_a_directory_that_is_not_there_is_a_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        sl.open(tmp_path / "none" / "x.limits", sl.LimitSet("set", [NAMED]))
    assert isinstance(raised.value, sl.NotFound)
    with pytest.raises(sl.NotFound, match="config") as raised:
        sl.open(tmp_path / "x.limits")
    assert "open_or_create" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root may become another user")
def test_a_file_of_another_user_is_a_permission_error(segment_path):
    sl.open(segment_path, sl.LimitSet("set", [NAMED]))
    script = f"""
import os, shmlimit
os.setgid(65534); os.setuid(65534)
try:
    shmlimit.open({str(segment_path)!r})
except PermissionError as error:
    print(isinstance(error, shmlimit.SegmentError), error.errno)
"""
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert other.stdout.split() == ["True", "13"]


@pytest.mark.parametrize(
    ("limit", "error", "place"),
    [
        (sl.Calls("requests", -1, "1h"), sl.DeclarationError, 'set "api" / limit "requests" / capacity'),
        (sl.Calls("requests", 1, "soon"), sl.DeclarationError, 'set "api" / limit "requests" / window'),
        (sl.Calls("requests", 1, "1h", algorithm="none"), sl.DeclarationError, 'limit "requests" / algorithm'),
        (sl.Calls(b"requests", 1, "1h"), TypeError, "name is b'requests'"),
    ],
)
def test_a_wrong_value_in_a_declaration_is_named_with_its_place(segment_path, limit, error, place):
    with pytest.raises(error, match=place):
        sl.open(segment_path, sl.LimitSet("api", [limit]))
    assert not segment_path.exists()


A = sl.Calls("a", 5, 60)


@pytest.mark.parametrize(
    ("declared", "error", "message"),
    [
        (sl.LimitSet("api", [sl.Calls(b"a", 5, 60)]), TypeError, "set \"api\" / limit b'a' / name is b'a': give a str"),
        (
            sl.LimitSet("api", [sl.Calls("a", 5, 60, burst=object())]),
            TypeError,
            'set "api" / limit "a" / burst is <object object',
        ),
        (
            sl.LimitSet("api", [sl.Calls("a", 5, float("nan"))]),
            sl.DeclarationError,
            'set "api" / limit "a" / window is nan: give a finite number of seconds',
        ),
        (
            sl.LimitSet("api", [sl.Calls("a", 5, True)]),
            TypeError,
            'set "api" / limit "a" / window is True: give seconds',
        ),
        (sl.LimitSet("api", [A], keyed="x"), TypeError, "set \"api\" / keyed is 'x': give a Keyed, or how many keys"),
        (
            sl.LimitSet("api", [A], keyed=-3),
            sl.DeclarationError,
            'set "api" / keyed / max_keys is -3: give a number that is not negative',
        ),
        (sl.LimitSet("api", [A], waiters=10**30), sl.DeclarationError, f'set "api" / waiters is {10**30}: give less'),
        (
            sl.LimitSet("api", [sl.Calls("a", 10**30, 60)]),
            sl.DeclarationError,
            f'set "api" / limit "a" / capacity: "{10**30}" is more than',
        ),
        (sl.LimitSet("api", A), TypeError, f'set "api" / limits is {A!r}: give it in a list, in brackets'),
        (sl.LimitSet("api", "a"), TypeError, "set \"api\" / limits is 'a': give a list of Rate, Calls, Budget"),
        (sl.LimitSet("api", [5]), TypeError, 'set "api" / limits has 5: give Rate, Calls, Budget and Concurrency'),
        (sl.LimitSet("api", [A], metadata={"zone": 5}), TypeError, 'set "api" / metadata / zone is 5: give a str'),
        (
            sl.LimitSet("api", [A], keyed=9, tiers=[sl.Tier("gold", {"a": {"capacity": object()}})]),
            TypeError,
            'set "api" / tier "gold" / limits / a / capacity is <object',
        ),
        (
            {"set": [{"name": "api", "limit": [{"name": "a", "burst": b""}]}]},
            TypeError,
            'set "api" / limit "a" / burst is',
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_place_and_what_to_give(segment_path, declared, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        sl.open(segment_path, declared)
    assert not segment_path.exists()


def test_a_mode_is_a_number_or_octal_text(segment_path):
    sl.open(segment_path, sl.LimitSet("api", [A]), mode="0640")
    assert segment_path.stat().st_mode & 0o777 == 0o640
    for mode, error in [(6.4, TypeError), (True, TypeError), ("rw", sl.DeclarationError), (660, sl.DeclarationError)]:
        with pytest.raises(error, match="mode"):
            sl.open(segment_path, sl.LimitSet("api", [A]), mode=mode)


def test_a_segment_that_is_to_be_removed_and_is_not_there_is_said_to_be_missing_and_no_more(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no segment at .*: nothing was removed$") as raised:
        sl.remove(tmp_path / "none.limits")
    assert (type(raised.value), raised.value.path) == (sl.NotFound, str(tmp_path / "none.limits"))


def test_a_path_may_be_given_as_bytes(segment_path):
    path = os.fsencode(segment_path)
    assert sl.open(path, sl.LimitSet("set", [NAMED]))["set"].path == str(segment_path)
    sl.remove(path, force=True)
    assert not segment_path.exists()


def test_a_segment_is_a_mapping_of_its_sets(segment_path):
    segment = sl.open(segment_path, [sl.LimitSet(name, [NAMED]) for name in ["eu", "us"]])
    assert dict(segment) == {"eu": segment["eu"], "us": segment["us"]}
    assert list(segment.keys()) == ["eu", "us"]
    assert segment.get("asia") is None


def test_a_closed_segment_refuses_and_its_handles_go_on(segment_path):
    with sl.open(segment_path, sl.LimitSet("set", [sl.Concurrency("c", 1)])) as segment:
        limits = segment["set"]
        permit = limits.try_acquire()
    assert segment.closed
    segment.close()
    with pytest.raises(sl.SegmentClosed, match="open"):
        segment["set"]
    with pytest.raises(sl.SegmentClosed):
        segment.snapshot()
    assert not limits.try_acquire()
    permit.release()
    assert limits.try_acquire()
    assert "closed" in repr(segment)


def test_the_attachment_ends_with_the_last_object(segment_path):
    def attached():
        program = Path(sys.executable).with_name("limitctl")
        shown = subprocess.run([program, "inspect", "--json", segment_path], check=True, capture_output=True)
        return len(json.loads(shown.stdout)["participants"])

    segment = sl.open(segment_path, sl.LimitSet("set", [NAMED]))
    other = sl.open(segment_path)
    limits = segment["set"]
    segment.close()
    assert attached() == 1
    del other
    assert attached() == 1
    del limits
    assert attached() == 0


def test_values_compare_pickle_and_show_what_they_say(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600, algorithm="token_bucket"), sl.Concurrency("c", 2))
    permit = limits.try_acquire({"tokens": 50})
    values = [
        limits.check({"tokens": 10, "c": 0}),
        limits.check({"tokens": 100, "c": 0}),
        *limits.peek({"tokens": 1}).values(),
        *limits.forecast().values(),
        permit.settle(tokens=20),
    ]
    for value in values:
        restored = pickle.loads(pickle.dumps(value))
        assert restored == value
        assert repr(restored) == repr(value)
        assert bool(restored) == bool(value)
        assert "None" not in repr(value)
        assert value != "something else"
    assert values[0] != values[1]
    assert repr(limits.peek({"tokens": 1})["c"]).startswith("Verdict(limit='c', admitted=True")


def test_a_declaration_shows_its_name_first_and_what_was_given():
    assert repr(sl.Calls("requests", 10, "2s", algorithm="gcra")) == (
        "Calls(name='requests', capacity=10, window='2s', algorithm='gcra', bound='at most 19 in any 2s')"
    )
    assert repr(sl.Calls("requests", -1, "2s")) == "Calls(name='requests', capacity=-1, window='2s')"
    assert repr(sl.LimitSet("api", [NAMED], keyed=sl.Keyed(10))) == (
        f"LimitSet(name='api', limits=[{NAMED!r}], keyed=Keyed(max_keys=10))"
    )


@pytest.mark.parametrize(
    ("limit", "bound"),
    [
        (sl.Calls("c", 10, "2s"), "at most 19 in any 2s"),
        (sl.Calls("c", 10, 2, algorithm="sliding_window"), "at most 10 in any 2s"),
        (sl.Rate("r", 10, "2s", algorithm="token_bucket", burst=1), "at most 10 in any 2s"),
        (sl.Rate("r", "1.5", "2s", unit="0.5", algorithm="fixed_window"), "at most 3 in any 2s"),
        (sl.Calls("c", "unlimited"), None),
        (sl.Calls("c", 10, "soon"), None),
        (sl.Calls("\ud800", object(), 2), None),  # type: ignore[arg-type]
    ],
)
def test_a_limit_says_how_much_it_admits_in_any_window(limit, bound):
    assert limit.bound == bound


def test_a_blocking_acquire_that_waits_in_an_event_loop_warns(open_set):
    limits = open_set(sl.Concurrency("c", 1))

    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            permit = limits.acquire(timeout=10)  # need not wait, and so need not warn
        with pytest.warns(sl.BlockingAcquireWarning, match="acquire_async"), pytest.raises(sl.AcquireTimeout):
            limits.acquire(timeout=0.01)
        permit.release()

    asyncio.run(main())


def test_a_warning_that_is_an_error_leaves_the_queue(open_set):
    limits = open_set(sl.Concurrency("c", 1))

    async def main():
        with limits.acquire(), warnings.catch_warnings():
            warnings.simplefilter("error", sl.BlockingAcquireWarning)
            with pytest.raises(sl.BlockingAcquireWarning):
                limits.acquire()
        assert limits.try_acquire()

    asyncio.run(main())


def test_what_responses_tell_needs_no_attachment_of_its_own(segment_path):
    pytest.importorskip("fastapi")
    from shmlimit.fastapi import ClientAddress, Limited

    observer = sl.open(segment_path, sl.LimitSet("set", [NAMED], keyed=10))
    limits = sl.open(segment_path)["set"]
    attached = len(observer.snapshot()["participants"])
    dependencies = [Limited(limits, key=ClientAddress()) for _ in range(30)]
    assert len(observer.snapshot()["participants"]) == attached
    assert len(dependencies) == 30


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert sl.__version__ == version("shmlimit")
