"""A WSGI application behind the middleware; each worker serves the figures of all workers at `/metrics`."""

import os
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

import shmlimit as sl
from shmlimit.prometheus import SegmentCollector
from shmlimit.wsgi import LimitMiddleware

segment = sl.open(os.environ["DIRECTORY"] + "/segment")
registry = CollectorRegistry()
registry.register(SegmentCollector(segment))
_metrics = make_wsgi_app(registry)


def _answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d\n" % os.getpid()]


_limited = LimitMiddleware(_answer, limits=segment["api"])


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Serves one request."""
    if environ["PATH_INFO"] == "/metrics":
        return _metrics(environ, start_response)
    return (_answer if environ["PATH_INFO"] == "/ready" else _limited)(environ, start_response)
