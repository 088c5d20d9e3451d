"""The WSGI middleware, in front of a Flask application: requests per minute and requests at once.

Run it: `python python/examples/web/with_wsgi.py`.
"""

import os

from demonstration import DIRECTORY, main
from flask import Flask

import shmlimit as sl
from shmlimit.wsgi import ClientAddress, LimitMiddleware

limits = sl.open(
    f"{DIRECTORY}/example.limits",
    sl.LimitSet(
        "api",
        [sl.Calls("requests", 5, "60s", algorithm="sliding_window"), sl.Concurrency("in_flight", 8)],
        keyed=10_000,
    ),
)["api"]
app = Flask(__name__)
app.wsgi_app = LimitMiddleware(app.wsgi_app, limits, key=ClientAddress())  # type: ignore[method-assign]


@app.get("/")
def index() -> str:
    """A page that every address gets five times a minute."""
    return f"from worker {os.getpid()}"


if __name__ == "__main__":
    main("gunicorn", "with_wsgi:app")
