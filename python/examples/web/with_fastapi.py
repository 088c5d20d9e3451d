"""A FastAPI dependency: reserves what a request may cost, and settles once its cost is known.

Run it: `python python/examples/web/with_fastapi.py`.
"""

import os
from typing import Annotated

from demonstration import DIRECTORY, main
from fastapi import Depends, FastAPI

import shmlimit as sl
from shmlimit.fastapi import ClientAddress, Limited, LimitRefused, problem_response

limits = sl.open(
    f"{DIRECTORY}/example.limits",
    sl.LimitSet(
        "api",
        [
            sl.Calls("requests", 5, "60s", algorithm="sliding_window"),
            sl.Rate("tokens", 100_000, "1h", algorithm="token_bucket"),
        ],
        keyed=10_000,
    ),
)["api"]
tokens = Limited(limits, key=ClientAddress(), costs={"tokens": 400}, quota_units={"tokens": "tokens"})

app = FastAPI()
app.add_exception_handler(LimitRefused, problem_response)


@app.get("/")
def index(permit: Annotated[sl.Permit, Depends(tokens)]) -> str:
    """A page that may take 400 tokens and takes 150."""
    settlement = permit.settle(tokens=150)
    return f"from worker {os.getpid()}, which gave back {settlement.refunded['tokens']} tokens"


if __name__ == "__main__":
    main("uvicorn", "with_fastapi:app")
