"""Flask-Limiter: what changes is the storage's URI and one import, which registers it.

Run it: `python python/examples/web/with_flask_limiter.py`.
"""

import os

from demonstration import DIRECTORY, main
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import shmlimit.limits_storage  # noqa: F401 - registers shm://

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=f"shm://{DIRECTORY}/example.limits",  # it was memory://
)


@app.get("/")
@limiter.limit("5 per minute")
def index() -> str:
    """A page that everyone gets five times a minute."""
    return f"from worker {os.getpid()}"


if __name__ == "__main__":
    main("gunicorn", "with_flask_limiter:app")
