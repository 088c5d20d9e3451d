"""What the processes of test_throttled do."""

from __future__ import annotations

import urllib.error
import urllib.request
from multiprocessing.connection import Connection

import shmlimit as sl


def ask_a_server(limits: sl.SetHandle, url: str, line: Connection) -> None:
    """Ask under a permit, and do as the server says; send whether that throttled."""
    with limits.acquire() as permit:
        try:
            urllib.request.urlopen(url)
        except urllib.error.HTTPError as refused:
            line.send(permit.respect(refused))
            refused.close()


def try_when_told(limits: sl.SetHandle, line: Connection) -> None:
    """Say that this process is there; then, for each word that arrives, whether a request is admitted, or why not."""
    line.send("there")
    while line.recv() != "end":
        with_reason = limits.try_acquire()
        line.send((bool(with_reason), with_reason.reason, with_reason.retry_after))
        with_reason.release()
