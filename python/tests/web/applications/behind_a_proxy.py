"""Plain WSGI and ASGI applications that limit the visitors of the proxy in front of them."""

import os
from collections.abc import Iterable
from typing import Any

import shmlimit as sl
from shmlimit import asgi, wsgi

limits = sl.open(os.environ["DIRECTORY"] + "/segment")["api"]


def _wsgi(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d\n" % os.getpid()]


async def _asgi(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"%d\n" % os.getpid()})


wsgi_app = wsgi.LimitMiddleware(
    _wsgi,
    limits,
    key=wsgi.ClientAddress.x_forwarded_for(1),
    exempt=lambda environ: environ["PATH_INFO"] == "/ready",
)
asgi_app = asgi.LimitMiddleware(
    _asgi, limits, key=asgi.ClientAddress.x_forwarded_for(1), exempt=lambda scope: scope["path"] == "/ready"
)
