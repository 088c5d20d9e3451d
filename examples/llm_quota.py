"""Four processes share the quotas of a language model: tokens are reserved before each call, and settled after it.

python examples/llm_quota.py
"""

import os
import random
import tempfile
from concurrent.futures import ProcessPoolExecutor

import shmlimit as sl

QUOTA = sl.LimitSet(
    "model",
    [
        sl.Calls("requests", 500, "1h", algorithm="sliding_window"),
        sl.Rate("tokens", 20_000, "1h", algorithm="token_bucket"),
        sl.Concurrency("in_flight", 3),
    ],
)
LONGEST_ANSWER = 400


def ask_the_model(prompt_tokens: int) -> int:
    """What a model would say that it used; an application calls its client here."""
    return prompt_tokens + random.randint(1, LONGEST_ANSWER)


def work(path: str) -> int:
    """What each process does: ask until the quota is used up. The tokens that it used."""
    model = sl.open(path, QUOTA)["model"]  # the first process creates the file, the others open it
    used = 0
    while True:
        prompt = random.randint(20, 200)
        try:
            # Waits in the queue for one of the three places, but not for tokens that come an hour later.
            permit = model.acquire({"tokens": prompt + LONGEST_ANSWER}, timeout=5)
        except sl.AcquireTimeout:
            return used
        with permit:
            tokens = ask_the_model(prompt)
            permit.settle(tokens=tokens)  # the rest of the reservation comes back
            used += tokens


def main() -> None:
    """Use the quota up with four processes, and compare."""
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor(4) as workers:
        used = sum(workers.map(work, [os.path.join(directory, "model.limits")] * 4))
    print(f"used {used} of 20000 tokens")


if __name__ == "__main__":
    main()
