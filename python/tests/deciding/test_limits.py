"""Taking, holding, settling, asking: what one process sees of a set."""

import asyncio
import enum
import gc
from decimal import Decimal
from ipaddress import ip_address
from uuid import UUID

import pytest
from conftest import CLOCK_LAG

import shmlimit as sl


def test_refuses_the_eleventh_of_ten(open_set):
    limits = open_set(sl.Calls("requests", 10, "1h"))
    answers = [limits.try_acquire() for _ in range(11)]
    assert [bool(answer) for answer in answers] == [True] * 10 + [False]
    refusal = answers[-1]
    assert isinstance(refusal, sl.Refusal)
    assert (refusal.binding, refusal.reason, refusal.remaining) == ("requests", "rate", 0)
    assert 0 < refusal.retry_after <= 360 + CLOCK_LAG
    assert refusal.set_name == "set"
    assert not refusal.verdicts["requests"].admitted


def test_a_refusal_takes_of_no_limit(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600), sl.Concurrency("in_flight", 1))
    with limits.try_acquire({"tokens": 10}):
        assert not limits.try_acquire({"tokens": 10})
        assert limits.peek({"tokens": 0, "in_flight": 0})["tokens"].remaining == 90


def test_a_permit_gives_concurrency_back_at_the_end_of_its_block(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    with limits.try_acquire() as permit:
        assert permit
        assert permit.taken == {"in_flight": 1}
        refusal = limits.try_acquire()
        assert not refusal
        refusal.release()  # releasing a refusal gives nothing back
        assert not limits.try_acquire()
    assert limits.try_acquire()


def test_an_exception_in_the_block_gives_everything_back_and_is_raised(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    with pytest.raises(ZeroDivisionError), limits.try_acquire():
        1 / 0  # noqa: B018
    assert limits.try_acquire()


def test_a_permit_that_is_held_no_more_is_released(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    permit = limits.try_acquire()
    assert not limits.try_acquire()
    del permit
    gc.collect()
    assert limits.try_acquire()


def test_release_is_idempotent_and_settling_afterwards_is_an_error(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600, algorithm="token_bucket"), sl.Concurrency("in_flight", 2))
    permit = limits.try_acquire({"tokens": 10})
    permit.release()
    permit.release()
    with pytest.raises(sl.AlreadyReleased):
        permit.settle(tokens=1)
    assert issubclass(sl.AlreadyReleased, RuntimeError)


def test_settling_refunds_what_was_not_used_and_charges_what_was_used_above(open_set):
    limits = open_set(sl.Rate("tokens", 1000, "1000h", algorithm="token_bucket"))
    with limits.try_acquire({"tokens": 100}) as permit:
        settlement = permit.settle(tokens=40)
        assert (settlement.refunded, settlement.overdraft) == ({"tokens": 60}, {"tokens": 0})
        with pytest.raises(sl.AlreadySettled):
            permit.settle(tokens=40)
    assert limits.peek({"tokens": 0})["tokens"].remaining == 960
    with limits.try_acquire({"tokens": 100}) as permit:
        assert permit.settle({"tokens": 150}).overdraft == {"tokens": 50}
    assert limits.peek({"tokens": 0})["tokens"].remaining == 810


def test_amounts_are_natural_where_the_limit_has_a_unit(open_set):
    limits = open_set(sl.Rate("dollars", "10.50", "1000h", unit="0.01", algorithm="token_bucket"))
    with limits.try_acquire({"dollars": 0.1}) as permit:
        assert permit.taken == {"dollars": Decimal("0.1")}
        assert permit.settle(dollars=Decimal("0.05")).refunded == {"dollars": Decimal("0.05")}
    assert limits.try_acquire({"dollars": "1.25"}).remaining == Decimal("9.2")
    assert limits.try_acquire({"dollars": 2}).remaining == Decimal("7.2")
    with pytest.raises(sl.InvalidAmount, match=r"0\.001"):
        limits.try_acquire({"dollars": 0.001})


@pytest.mark.parametrize("amount", [-1, -0.5, 2**64, float("nan"), float("inf"), "many", "-3", ""])
def test_what_is_no_amount_is_a_value_error_that_takes_nothing(open_set, amount):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(ValueError, match=r"amount|decimal|tokens"):
        limits.try_acquire({"tokens": amount})
    assert limits.peek({"tokens": 0})["tokens"].remaining == 100


@pytest.mark.parametrize("amount", [None, [], object(), 1j])
def test_what_is_no_number_is_a_type_error(open_set, amount):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(TypeError, match="not an amount"):
        limits.try_acquire({"tokens": amount})


def test_a_rate_must_be_named_and_the_impossible_is_an_error_at_once(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    with pytest.raises(sl.CostRequired, match="tokens"):
        limits.try_acquire()
    with pytest.raises(sl.NeverAdmissible, match="101"):
        limits.acquire({"tokens": 101})
    assert issubclass(sl.NeverAdmissible, ValueError)


def test_an_unknown_limit_is_an_error_or_skipped_with_one_warning_where_not_strict(open_set, segment_path):
    limits = open_set(sl.Calls("requests", 10, 3600), strict=False)
    with pytest.warns(sl.UnknownLimitWarning, match="reqests"):
        assert limits.try_acquire({"reqests": 3}).taken == {"requests": 1}
    assert limits.try_acquire({"reqests": 3})  # warnings are errors here
    strict = sl.open(segment_path)["set"]
    with pytest.raises(sl.UnknownLimit, match="it has requests") as raised:
        strict.try_acquire({"reqests": 3})
    with strict.acquire() as permit, pytest.raises(sl.UnknownLimit):
        permit.settle({"reqests": 3})
    assert isinstance(raised.value, KeyError)


def test_each_key_has_limits_of_its_own(open_set):
    limits = open_set(sl.Calls("requests", 1, 3600), keyed=100)
    assert limits.keyed
    for key in ["tenant-7", b"tenant-8", 9, ip_address("2001:db8::1"), UUID(int=7)]:
        assert limits.try_acquire(key=key)
        assert not limits.try_acquire(key=key)
    # The same keys, as the number and as the UUID.
    assert not limits.try_acquire(key="9")
    assert not limits.try_acquire(key=str(UUID(int=7)))
    with pytest.raises(sl.InvalidKey):
        limits.try_acquire()
    for no_key in (1.5, True, ("tenant-7", 9), object()):
        with pytest.raises(TypeError, match="not a key: give a str, bytes, int, UUID or IP address; of several parts"):
            limits.try_acquire(key=no_key)
    with pytest.raises(sl.InvalidKey):
        limits.try_acquire(key="")
    limits.reset(key="tenant-7")
    assert limits.try_acquire(key="tenant-7")


def test_check_many_decides_each_key_by_itself(open_set):
    limits = open_set(sl.Calls("requests", 1, 3600), keyed=100)
    answers = limits.check_many(["ann", "bob", "ann"])
    assert [bool(answer) for answer in answers] == [True, True, False]
    assert answers[0].taken == {"requests": 1}
    assert (answers[0].retry_after, answers[2].binding, answers[2].reason) == (0.0, "requests", "rate")


def test_addresses_are_counted_by_their_networks(open_set):
    prefix = {"ipv4": 24, "ipv6": 48}
    limits = open_set(sl.Calls("requests", 2, 3600, prefix=prefix), keyed=100)
    assert limits.check(key="192.0.2.1")
    assert limits.check(key=ip_address("192.0.2.77"))
    assert not limits.check(key="192.0.2.3")
    assert limits.check(key="192.0.3.1")
    assert limits.peek(key="192.0.3.9")["requests"].remaining == 1
    with pytest.raises(ValueError, match="not an IP address"):
        limits.check(key="example.org")
    limits.reset(key="192.0.2.200")
    assert limits.check(key="192.0.2.3")


def test_what_is_held_cannot_be_checked(open_set):
    limits = open_set(sl.Concurrency("in_flight", 2))
    with pytest.raises(sl.RequestError):
        limits.check()


def test_the_debit_that_crosses_the_line_counts_and_the_next_is_refused(open_set):
    limits = open_set(sl.Budget("tokens", 1000, 3600))
    assert limits.debit("tokens", 900)
    with limits.try_acquire() as permit:
        assert permit.debit("tokens", 900)
        assert not permit.debit("tokens", 1)
    assert not limits.debit("tokens", 1)
    assert limits.forecast()["tokens"].spendable == 0


def test_a_forecast_says_when_there_will_be_more(open_set):
    limits = open_set(sl.Calls("requests", 60, 60))
    limits.check({"requests": 30})
    forecast = limits.forecast()["requests"]
    assert forecast.spendable == 30
    assert 0 < forecast.next_unit_after <= 1 + CLOCK_LAG
    assert 29 < forecast.full_after <= 30 + CLOCK_LAG


def test_a_reservation_says_how_long_to_wait_and_can_be_cancelled(open_set):
    limits = open_set(sl.Calls("requests", 1, 1000))
    first = limits.reserve(max_delay=0)
    assert first.delay == 0
    second = limits.reserve(max_delay=2000)
    assert 990 < second.delay <= 1000
    assert not limits.reserve(max_delay=10)
    assert second.cancel()
    assert limits.reserve(max_delay=1500)
    permit = first.into_permit()
    assert permit.taken == {"requests": 1}
    with pytest.raises(sl.AlreadyReleased):
        first.cancel()


@pytest.mark.parametrize("key", [None, "somebody"])
def test_a_process_admits_from_the_batches_that_it_draws(open_set, key):
    limits = open_set(sl.Calls("requests", 100, "1000h", credit={"batch": 10}), keyed=key and 10)
    for remaining in [90, 80]:
        for _ in range(10):
            assert limits.check(key=key)
            assert limits.peek(key=key)["requests"].remaining == remaining
    assert limits.try_acquire(key=key)
    assert limits.peek(key=key)["requests"].remaining == 70


def test_automatic_batches_are_a_sixteenth_of_what_remains(open_set):
    requests = sl.Calls("requests", 1600, "1000h", credit="auto")
    assert requests.bound == "at most 3199 in any 41d16h, and 99 units more for each process"
    limits = open_set(requests)
    assert limits.check()
    assert limits.peek()["requests"].remaining == 1500
    with pytest.raises(sl.DeclarationError, match="one for each key"):
        open_set(requests, keyed=10)
    with pytest.raises(sl.DeclarationError, match="come back bit by bit"):
        open_set(sl.Calls("requests", 1600, "1000h", algorithm="fixed_window", credit="auto"))


def test_credit_says_its_bound_and_where_it_cannot_be_drawn(open_set):
    requests = sl.Calls("requests", 10, "2s", credit={"batch": 10})
    assert requests.bound == "at most 19 in any 2s, and 9 units more for each process"
    exact = sl.Calls("requests", 10, "2s", algorithm="fixed_window", credit={"batch": 10, "window_coupled": True})
    assert exact.bound == "at most 20 in any 2s"
    with pytest.raises(sl.DeclarationError, match="only a fixed window has windows"):
        open_set(sl.Calls("requests", 10, "2s", credit={"batch": 10, "window_coupled": True}))
    with pytest.raises(sl.DeclarationError, match="has one limit"):
        open_set(requests, sl.Concurrency("in_flight", 2))


def test_remaining_is_of_the_limit_that_is_nearest_to_its_end(open_set):
    limits = open_set(sl.Calls("many", 1000, "1000h"), sl.Calls("few", 10, "1000h"))
    permit = limits.try_acquire({"many": 500})
    assert permit.remaining == 500
    for _ in range(5):
        permit = limits.try_acquire({"few": 1, "many": 0})
    assert permit.remaining == 4
    assert {name: verdict.capacity for name, verdict in permit.verdicts.items()} == {"many": 1000, "few": 10}


def test_metadata_and_names_are_there_to_read(open_set):
    limits = open_set(sl.Concurrency("in_flight", 2), metadata={"region": "eu"})
    assert limits.metadata == limits.try_acquire().metadata == {"region": "eu"}
    assert (limits.name, limits.limit_names, limits.keyed) == ("set", ("in_flight",), False)


def test_a_lease_that_ran_out_is_told_to_its_holder(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1, lease=0.05))
    late = limits.try_acquire()
    next_one = limits.acquire(timeout=60)
    assert late.reclaimed
    assert not next_one.reclaimed
    assert late.fencing_number < next_one.fencing_number
    with pytest.raises(sl.Reclaimed):
        late.heartbeat()
    late.release()
    assert late.reclaimed


@pytest.fixture
def leased(shmlimit_segment, shmlimit_clock):
    return shmlimit_segment(sl.LimitSet("set", [sl.Concurrency("in_flight", 1, lease="30s")]))["set"]


def test_a_block_that_succeeded_under_a_lost_lease_has_succeeded(leased, shmlimit_clock, caplog):
    with leased.acquire() as permit:
        assert not permit.reclaimed
        shmlimit_clock.advance(30)
        # True from that instant on, even though no other request has asked for the place.
        assert permit.reclaimed
    assert permit.reclaimed
    permit.release()
    [record] = caplog.records
    assert (record.name, record.levelname) == ("shmlimit", "WARNING")
    assert "the lease of a permit of set set had run out" in record.getMessage()


def test_the_result_of_a_function_whose_lease_was_lost_is_its_result(leased, shmlimit_clock, caplog):
    def work():
        shmlimit_clock.advance(30)
        return "the result"

    async def work_of_a_task():
        return work()

    assert leased.limited(work)() == "the result"
    assert asyncio.run(leased.limited(work_of_a_task)()) == "the result"
    assert len(caplog.records) == 2
    lost = leased.try_acquire()
    shmlimit_clock.advance(30)
    del lost
    assert len(caplog.records) == 3


def test_a_heartbeat_in_time_leaves_nothing_to_warn_of(leased, shmlimit_clock, caplog):
    with leased.acquire() as permit:
        shmlimit_clock.advance(20)
        permit.heartbeat()
        shmlimit_clock.advance(20)
    assert not permit.reclaimed
    assert caplog.records == []


def test_what_is_acquired_with_a_heartbeat_keeps_its_lease(open_set):
    limits = open_set(sl.Concurrency("in_flight", 5, lease=2))

    @limits.limited(heartbeat=True)
    def hold_the_last_while_others_are_awaited():
        with pytest.raises(sl.AcquireTimeout):
            limits.acquire(timeout=3)

    async def awaited():
        return await limits.acquire_async(heartbeat=True)

    pool = sl.Pool([limits])
    permits = [limits.acquire(heartbeat=True), limits.try_acquire(heartbeat=True)]
    permits += [asyncio.run(awaited()), pool.acquire(heartbeat=True)]
    hold_the_last_while_others_are_awaited()
    assert not any(permit.reclaimed for permit in permits)
    assert pool.try_acquire(heartbeat=True)


def test_a_debit_of_what_is_no_budget_has_an_error_of_its_own(open_set):
    limits = open_set(sl.Budget("dollars", 10, "1h"), sl.Concurrency("in_flight", 1))
    with pytest.raises(sl.RequestError, match="in_flight"):
        limits.debit("in_flight", 1)
    with limits.acquire() as permit, pytest.raises(sl.RequestError, match="in_flight"):
        permit.debit("in_flight", 1)


def test_a_permit_that_is_kept_alive_keeps_its_lease(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1, lease=2))
    with limits.try_acquire() as permit:
        permit.keep_alive()
        with pytest.raises(sl.AcquireTimeout):
            limits.acquire(timeout=3)
        assert not permit.reclaimed


def test_what_python_shows_of_them_says_what_they_are(open_set):
    limits = open_set(sl.Concurrency("in_flight", 1))
    permit = limits.try_acquire()
    assert "in_flight" in repr(permit)
    assert "in_flight" in repr(limits.try_acquire())
    assert "'set'" in repr(limits) or '"set"' in repr(limits)
    assert "remaining=0" in repr(permit.verdicts["in_flight"])


def test_a_mapping_that_changes_while_it_is_read_does_no_harm(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    costs = {}

    class Growing:
        def __index__(self):
            costs["other"] = 1
            return 5

    costs["tokens"] = Growing()
    assert limits.try_acquire(costs).taken == {"tokens": 5}


def test_a_permit_can_be_used_while_the_amounts_of_its_settling_are_read(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600), sl.Concurrency("in_flight", 1))
    permit = limits.try_acquire({"tokens": 10})

    class Releasing:
        def __index__(self):
            permit.release()
            return 5

    with pytest.raises(sl.AlreadyReleased):
        permit.settle(tokens=Releasing())
    assert limits.try_acquire({"tokens": 1})


def test_whole_numbers_of_any_type_are_one_key_and_truth_is_none(open_set):
    class Number(enum.IntEnum):
        THREE = 3

    class Index:
        def __index__(self):
            return 3

    limits = open_set(sl.Calls("requests", 1, 3600), keyed=100)
    assert limits.check(key=3)
    for same in [Number.THREE, Index(), "3"]:
        assert not limits.check(key=same)
    with pytest.raises(TypeError, match="not a key"):
        limits.check(key=True)


def test_many_keys_may_come_from_any_iterable(open_set):
    limits = open_set(sl.Calls("requests", 1, 3600), keyed=100)
    assert [bool(answer) for answer in limits.check_many(name for name in ["ann", "bob"])] == [True, True]


def test_the_link_of_an_address_is_no_part_of_it(open_set):
    limits = open_set(sl.Calls("requests", 1, 3600, prefix={"ipv4": 32, "ipv6": 64}), keyed=100)
    assert limits.check(key="fe80::1%eth0")
    assert not limits.check(key=ip_address("fe80::2%eth1"))


def test_zero_of_either_sign_asks_without_taking(open_set):
    limits = open_set(sl.Rate("tokens", 100, 3600))
    assert limits.try_acquire({"tokens": -0.0}).remaining == 100


def test_counters_are_not_of_a_key(open_set):
    limits = open_set(sl.Calls("requests", 1, 3600), keyed=100)
    with pytest.raises(sl.RequestError, match="counters"):
        limits.reset(key="ann", counters=True)


def test_a_reservation_is_cancelled_once(open_set):
    limits = open_set(sl.Calls("requests", 1, 1000))
    limits.check()
    reservation = limits.reserve(max_delay=2000)
    assert reservation.cancel()
    for again in [reservation.cancel, reservation.into_permit]:
        with pytest.raises(sl.AlreadyReleased):
            again()


@pytest.mark.parametrize(("error", "failed"), [(ValueError, 1), (GeneratorExit, 0), (KeyboardInterrupt, 0)])
def test_work_that_was_ended_early_did_not_fail(segment_path, error, failed):
    limit = sl.Concurrency("in_flight", 4, adaptive="aimd", ceiling=8)
    segment = sl.open(segment_path, sl.LimitSet("set", [limit]))
    with pytest.raises(error), segment["set"].try_acquire():
        raise error
    assert segment.snapshot()["sets"][0]["limits"][0]["counts"]["failed"] == failed


@pytest.mark.parametrize("window", ["1.5h", "0.0625d", "90m", 5400, "1.25h 15m"])
def test_windows_may_have_decimals(open_set, window):
    limits = open_set(sl.Calls("requests", 1, window, algorithm="fixed_window", align="first_use"))
    assert limits.check()
    assert 5390 < limits.check().retry_after <= 5400
