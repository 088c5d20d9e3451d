"""slowapi: what changes is the storage's URI and one import, which registers it.

Run it: `python python/examples/web/with_slowapi.py`.
"""

import os

from demonstration import DIRECTORY, main
from fastapi import FastAPI, Request
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

import shmlimit.limits_storage  # noqa: F401 - registers shm://

limiter = Limiter(
    get_remote_address,
    storage_uri=f"shm://{DIRECTORY}/example.limits",  # it was memory://
)
app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/")
@limiter.limit("5/minute")
async def index(request: Request) -> str:
    """A page that everyone gets five times a minute."""
    return f"from worker {os.getpid()}"


if __name__ == "__main__":
    main("uvicorn", "with_slowapi:app")
