"""WSGI and ASGI applications behind the middlewares; they answer with their process id, at some paths for ever."""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import StreamingResponse

import shmlimit as sl
from shmlimit import asgi, wsgi

limits = sl.open(os.environ["DIRECTORY"] + "/segment")["api"]


def _is_exempt_path(path: str) -> bool:
    return path == "/ready"


def _wsgi(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] != "/stay":
        return [b"%d\n" % os.getpid()]
    return _stay()


def _stay() -> Iterator[bytes]:
    # What the client does not read fills the socket's buffers; then the worker waits for the client.
    while True:
        yield b"%d\n" % os.getpid() + b"." * 65536
        time.sleep(0.01)


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    if scope["path"] == "/stay":
        response = StreamingResponse(_stay(), media_type="text/plain")
        await response(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    while scope["path"] == "/stay-without-looking":
        await send({"type": "http.response.body", "body": b"%d\n" % os.getpid() + b"." * 65536, "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"%d\n" % os.getpid()})


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    is_more = True
    while is_more:
        # Sent before the body is read, so that the middleware looks first.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await asyncio.sleep(0)
        message = await receive()
        is_more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": is_more})


async def _by_method(scope: Any, receive: Any, send: Any) -> None:
    application = _echo if scope.get("method") == "POST" else _asgi
    await application(scope, receive, send)


patient_app = asgi.LimitMiddleware(_by_method, limits, timeout=600, exempt=lambda scope: _is_exempt_path(scope["path"]))
wsgi_app = wsgi.LimitMiddleware(_wsgi, limits, exempt=lambda environ: _is_exempt_path(environ["PATH_INFO"]))
patient_wsgi_app = wsgi.LimitMiddleware(
    _wsgi, limits, timeout=600, exempt=lambda environ: _is_exempt_path(environ["PATH_INFO"])
)
asgi_app = asgi.LimitMiddleware(_by_method, limits, exempt=lambda scope: _is_exempt_path(scope["path"]))
