"""ThrottleKit's axes, as its documentation shows them, with these limits.

python python/examples/moving/from_throttlekit.py

ThrottleKit decides in a Node process or in Redis. The lines that this prints name its calls.
"""

from __future__ import annotations

import os
import tempfile

import shmlimit as sl

CLOCK = sl.VirtualClock()


def main() -> None:
    """Shows each of them."""
    with tempfile.TemporaryDirectory() as directory:
        segment = sl.open(
            os.path.join(directory, "api.limits"),
            [
                # gcra({limit: 100, periodMs: 60_000, burst: 20})
                sl.LimitSet("api", [sl.Calls("rate", 100, 60, algorithm="gcra", burst=20)], keyed=1000),
                # A tokenBudget block.
                sl.LimitSet("llm", [sl.Budget("tokens", 1000, 60)], keyed=1000),
                # A concurrency block beside a strategy.
                sl.LimitSet("jobs", [sl.Calls("rate", 100, 60, algorithm="gcra"), sl.Concurrency("concurrency", 2)]),
                # A twoTier block.
                sl.LimitSet("hot", [sl.Calls("rate", 1000, 60, algorithm="gcra", credit={"batch": 10})]),
            ],
            clock=CLOCK,
        )
        api, llm, jobs = segment["api"], segment["llm"], segment["jobs"]

        decisions = [api.check(key="alice") for _ in range(21)]
        print("check(api, alice) x 21:     allowed", sum(map(bool, decisions)), "of 21")
        refused = decisions[-1]
        print("  the last of them:        ", refused.reason, "retry after", refused.retry_after, "s")
        print("check_many(api, 3 keys):   ", [bool(each) for each in api.check_many(["alice", "bob", "carol"])])
        print("peek(api, bob):            ", api.peek(key="bob")["rate"].remaining, "remaining")
        print("forecast(api, alice):      ", api.forecast(key="alice")["rate"].next_unit_after, "s to the next")

        print("debit(llm, alice, 1500):   ", bool(llm.debit("tokens", 1500, key="alice")), "and counts in full")
        print("debit(llm, alice, 1):      ", bool(llm.debit("tokens", 1, key="alice")), "until the window ends")

        with jobs.acquire() as _first, jobs.acquire() as _second:
            refusal = jobs.try_acquire()
            print("admit(jobs) x 3:            the third is refused by", refusal.binding)

        hot = segment["hot"]
        print("leased check(hot) x 25:    ", sum(bool(hot.check()) for _ in range(25)), "admitted from batches of 10")


if __name__ == "__main__":
    main()
