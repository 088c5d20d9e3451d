"""The ASGI middleware, in front of a Starlette application: requests per minute and requests at once.

Run it: `python python/examples/web/with_asgi.py`.
"""

import os

from demonstration import DIRECTORY, main
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import shmlimit as sl
from shmlimit.asgi import ClientAddress, LimitMiddleware

limits = sl.open(
    f"{DIRECTORY}/example.limits",
    sl.LimitSet(
        "api",
        [sl.Calls("requests", 5, "60s", algorithm="sliding_window"), sl.Concurrency("in_flight", 8)],
        keyed=10_000,
    ),
)["api"]


async def index(_: Request) -> PlainTextResponse:
    """A page that every address gets five times a minute."""
    return PlainTextResponse(f"from worker {os.getpid()}")


app = Starlette(
    routes=[Route("/", index)],
    middleware=[Middleware(LimitMiddleware, limits, key=ClientAddress())],
)

if __name__ == "__main__":
    main("uvicorn", "with_asgi:app")
