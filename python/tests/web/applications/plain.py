"""Plain WSGI and ASGI applications behind the middlewares, which stream the number of their process and stay."""

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import StreamingResponse

import shmlimit as sl
from shmlimit import asgi, wsgi

limits = sl.open(os.environ["FOLDER"] + "/segment")["api"]


def _is_exempt_path(path: str) -> bool:
    return path == "/ready"


def _wsgi(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] != "/stay":
        return [b"%d\n" % os.getpid()]
    return _stay()


def _stay() -> Iterator[bytes]:
    # What the client does not read fills the socket's buffers; then the worker waits for it.
    while True:
        yield b"%d\n" % os.getpid() + b"." * 65536
        time.sleep(0.01)


async def _asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    if scope["path"] != "/stay":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"%d\n" % os.getpid()})
        return
    response = StreamingResponse(_stay(), media_type="text/plain")
    await response(scope, receive, send)


wsgi_app = wsgi.LimitMiddleware(_wsgi, limits, exempt=lambda environ: _is_exempt_path(environ["PATH_INFO"]))
asgi_app = asgi.LimitMiddleware(_asgi, limits, exempt=lambda scope: _is_exempt_path(scope["path"]))
