"""An application of Flask-Limiter that names the storage but does not import it."""

import os

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(get_remote_address, app=app, storage_uri=f"shm://{os.environ['DIRECTORY']}/limits")


@app.get("/ready")
def ready() -> str:
    return str(os.getpid())


@app.get("/")
@limiter.limit("5 per hour")
def limited() -> str:
    return str(os.getpid())
