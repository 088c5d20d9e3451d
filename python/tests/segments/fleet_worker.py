"""A worker of a host, which asks the store when it has duty.

It takes one token at a time from the set `openai` of a segment, or nothing if its second argument is `idle`.
"""

from __future__ import annotations

import sys
import time

import shmlimit as sl

if __name__ == "__main__":
    segment = sl.open(sys.argv[1])
    limits = segment["openai"]
    while True:
        if sys.argv[2:] != ["idle"]:
            limits.try_acquire({"tokens": 1})
        time.sleep(0.002)
