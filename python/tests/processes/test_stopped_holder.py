"""A process that is stopped while it holds the lock: what others give back meanwhile, and the errors that they get."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until

import shmlimit as sl

ASKS = """
import sys
import shmlimit as sl
limits = sl.open(sys.argv[1])["set"]
while True:
    limits.check({"slots": 0, "tokens": 0})
"""


@contextlib.contextmanager
def stopped_with_the_lock(segment: sl.Segment) -> Iterator[None]:
    """A process that takes and releases the lock, stopped while it holds it; it continues at the end."""
    with subprocess.Popen([sys.executable, "-c", ASKS, segment.path]) as process:
        try:
            wait_until(
                lambda: any(each["pid"] == process.pid for each in segment.snapshot()["participants"]), "it asks"
            )

            def is_stopped_with_it() -> bool:
                process.send_signal(signal.SIGSTOP)
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                if segment.snapshot()["sets"][0]["lock"]["holder_pid"] == process.pid:
                    return True
                process.send_signal(signal.SIGCONT)
                return False

            wait_until(is_stopped_with_it, "it is stopped with the lock")
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def test_what_is_given_back_while_the_lock_is_stuck_comes_back(segment_path: Path) -> None:
    declared = sl.LimitSet("set", [sl.Concurrency("slots", 4), sl.Rate("tokens", 1000, "10000h")])
    segment = sl.open(segment_path, declared, lock_timeout=0.05)
    limits = segment["set"]
    released, collected, settled, left = (limits.acquire({"tokens": 10}) for _ in range(4))
    with stopped_with_the_lock(segment):
        with pytest.raises(sl.LockStuck):
            limits.try_acquire({"tokens": 10})
        with pytest.raises(sl.LockStuck):
            settled.settle({"tokens": 0})
        released.release()
        del collected
        with left:
            pass
        holds = segment.snapshot()["sets"][0]["holds"]
        assert sorted(hold["returned"] for hold in holds) == [False, True, True, True]
    settled.settle({"tokens": 0})
    settled.release()
    wait_until(lambda: segment.snapshot()["sets"][0]["active"] == 0, "everything comes back")
    assert limits.peek({"tokens": 0})["tokens"].remaining == 970, "settled once; the others used what they took"
    for permit in [limits.acquire({"tokens": 1}) for _ in range(4)]:
        permit.release()
