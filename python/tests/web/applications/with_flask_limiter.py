"""An existing application of Flask-Limiter, in which only the storage's URI and one import have changed."""

import os

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import shmlimit.limits_storage  # noqa: F401 - registers shm://

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=f"shm://{os.environ['DIRECTORY']}/limits",
    strategy=os.environ.get("STRATEGY", "fixed-window"),
    headers_enabled=True,
)


@app.get("/ready")
def ready() -> str:
    return str(os.getpid())


@app.get("/")
@limiter.limit("5 per hour")
def limited() -> str:
    return str(os.getpid())


@app.errorhandler(429)
def refused(_: Exception) -> tuple[str, int]:
    return str(os.getpid()), 429
