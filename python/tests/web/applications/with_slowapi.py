"""An existing application of slowapi, in which only the storage's URI and one import have changed."""

import os

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

import shmlimit.limits_storage  # noqa: F401 - registers shm://

limiter = Limiter(
    get_remote_address,
    storage_uri=f"shm://{os.environ['DIRECTORY']}/limits",
    strategy=os.environ.get("STRATEGY", "fixed-window"),
)
app = FastAPI()
app.state.limiter = limiter


@app.get("/ready")
async def ready() -> int:
    return os.getpid()


@app.get("/")
@limiter.limit("5/hour")
async def limited(request: Request) -> Response:
    return PlainTextResponse(str(os.getpid()))


@app.exception_handler(RateLimitExceeded)
async def refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(os.getpid()), 429)
