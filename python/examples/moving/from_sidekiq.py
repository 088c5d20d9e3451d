"""The limiters of Sidekiq Enterprise, with these limits.

python python/examples/moving/from_sidekiq.py

Sidekiq's limiters run in Ruby beside Redis, and are sold. Above each part is the call that their documentation shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import shmlimit as sl

HOLD_UNTIL_KILLED = """
import signal, sys
import shmlimit as sl
with sl.open(sys.argv[1])["erp"].acquire():
    print("holds", flush=True)
    signal.pause()
"""


def main() -> None:
    """Shows each kind."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "limiters.limits")
        segment = sl.open(
            path,
            [
                # Sidekiq::Limiter.concurrent('erp', 1, wait_timeout: 5, lock_timeout: 30)
                sl.LimitSet("erp", [sl.Concurrency("running", 1, lease=30)]),
                # Sidekiq::Limiter.bucket('stripe', 30, :second, wait_timeout: 0)
                sl.LimitSet("stripe", [sl.Calls("calls", 30, "1s", algorithm="fixed_window")]),
                # Sidekiq::Limiter.window('stripe-#{userid}', 5, :second, wait_timeout: 0)
                sl.LimitSet("users", [sl.Calls("calls", 5, "1s", algorithm="sliding_window")], keyed=10_000),
                # Sidekiq::Limiter.leaky('shopify', 60, :minute, wait_timeout: 0)
                sl.LimitSet("shopify", [sl.Calls("calls", 60, "60s", algorithm="leaky_bucket")]),
                # Sidekiq::Limiter.points('graphql', 1000, 50, wait_timeout: 0)
                sl.LimitSet("graphql", [sl.Rate("points", 50, "1s", burst=1000, algorithm="token_bucket")]),
                # Sidekiq::Limiter.unlimited
                sl.LimitSet("free", [sl.Calls("calls", "unlimited", "1s")]),
            ],
        )
        erp = segment["erp"]
        with subprocess.Popen([sys.executable, "-c", HOLD_UNTIL_KILLED, path], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            # ERP.within_limit { ... }, while another process has the only lock.
            try:
                erp.acquire(timeout=0.1)
            except sl.AcquireTimeout as error:  # Sidekiq::Limiter::OverLimit
                print("concurrent: over the limit by", error.binding)
            other.kill()
            begun = time.monotonic()
            with erp.acquire(timeout=60):
                waited = time.monotonic() - begun
                print(f"concurrent: the holder was killed, and its lock is here before its lock_timeout: {waited < 30}")
        print("bucket:    ", sum(bool(segment["stripe"].check()) for _ in range(30)) > 0)
        print("window:    ", sum(bool(segment["users"].check(key="user-7")) for _ in range(9)), "of 9 for a user")
        print("leaky:     ", sum(bool(segment["shopify"].check()) for _ in range(70)) // 10 * 10, "of 70 at once")
        # POINTS.within_limit(estimate: 200) { |handle| ...; handle.points_used(40) }
        with segment["graphql"].acquire({"points": 200}) as handle:
            print("points:    ", handle.settle(points=40).refunded["points"] > 0, "that unused points come back")
        print("unlimited: ", all(segment["free"].check() for _ in range(1000)))


if __name__ == "__main__":
    main()
