"""An application whose WebSocket connections are limited, and whose lifespan is not."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import shmlimit as sl
from shmlimit.asgi import LimitMiddleware

limits = sl.open(os.environ["DIRECTORY"] + "/segment")["sockets"]
started: list[str] = []


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    started.append("started")
    yield


async def ready(_: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{os.getpid()} {','.join(started)}")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


app = Starlette(
    routes=[Route("/ready", ready), WebSocketRoute("/", echo)],
    middleware=[Middleware(LimitMiddleware, limits, exempt=lambda scope: scope["path"] == "/ready")],
    lifespan=lifespan,
)
