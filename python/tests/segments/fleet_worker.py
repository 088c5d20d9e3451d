"""A worker of a host: takes a token at a time of the set `openai` of a segment, and asks the store when it has duty."""

from __future__ import annotations

import sys
import time

import shmlimit as sl

if __name__ == "__main__":
    limits = sl.open(sys.argv[1])["openai"]
    while True:
        limits.try_acquire({"tokens": 1})
        time.sleep(0.002)
