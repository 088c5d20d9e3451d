"""What is logged: what nobody could be told in any other way."""

import logging
import subprocess
import sys
import warnings

import pytest

import shmlimit as sl


@pytest.fixture
def lent(shmlimit_segment, shmlimit_clock):
    """Takes the only place, lets its lease run out and someone else take it; returns both permits."""
    limits = shmlimit_segment(sl.LimitSet("api", [sl.Concurrency("in_flight", 1, lease="30s")]))["api"]

    def lend():
        permit = limits.try_acquire()
        assert permit
        shmlimit_clock.advance(30)
        other = limits.try_acquire()
        assert other
        return permit, other

    return lend


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "shmlimit"]


def test_a_permit_that_is_collected_after_its_lease_ran_out_is_logged(lent, caplog):
    permit, _other = lent()
    assert messages(caplog) == []
    del permit
    [message] = messages(caplog)
    assert "set api" in message
    assert "had run out before it was released" in message
    assert caplog.records[0].levelno == logging.WARNING


def test_a_permit_is_released_though_the_logger_fails(lent, monkeypatch):
    permit, _other = lent()
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setattr(logging.getLogger("shmlimit"), "filters", [lambda record: 1 / 0])
    permit.release()
    assert permit.reclaimed
    assert [failure.exc_type for failure in reported] == [ZeroDivisionError]


def test_a_block_that_fails_after_its_lease_ran_out_raises_its_own_exception_and_logs(lent, caplog):
    permit, _other = lent()
    with pytest.raises(ZeroDivisionError), permit:
        raise ZeroDivisionError
    [message] = messages(caplog)
    assert "had run out before it was released" in message
    del permit
    assert len(messages(caplog)) == 1


def test_what_is_raised_goes_on_though_a_permit_is_collected_meanwhile(lent, caplog):
    def fails():
        permits = lent()
        assert permits
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        fails()
    # The traceback keeps the frame, and the frame the permits.
    raised.value.__traceback__ = None
    del raised
    assert messages(caplog)


def test_a_permit_that_is_given_back_in_time_logs_nothing(shmlimit_segment, caplog):
    segment = shmlimit_segment(sl.LimitSet("api", [sl.Concurrency("in_flight", 2)]))
    permit = segment["api"].try_acquire()
    del permit
    with segment["api"].try_acquire():
        pass
    retired = segment["api"].try_acquire()
    sl.remove(segment.path, force=True)
    del retired
    assert messages(caplog) == []


def test_a_name_that_is_skipped_is_logged_once_beside_the_warning(open_set, caplog):
    limits = open_set(sl.Concurrency("in_flight", 2), strict=False)
    with pytest.warns(sl.UnknownLimitWarning, match="tokens"):
        first = limits.try_acquire({"tokens": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = limits.try_acquire({"tokens": 1})
    assert first
    assert second
    [message] = messages(caplog)
    assert "has no limit `tokens`" in message


def test_a_name_that_is_skipped_is_printed_once_where_logging_is_not_configured(segment_path):
    script = f"""
import shmlimit as sl
limits = sl.open({str(segment_path)!r}, sl.LimitSet("set", [sl.Concurrency("in_flight", 2)]), strict=False)["set"]
limits.try_acquire({{"tokens": 1}})
"""
    command = [sys.executable, "-W", "default", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr.count("has no limit `tokens`") == 1
