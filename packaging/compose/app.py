"""Answers as many requests as all workers of all containers may answer together."""

import math
from functools import cache

import shmlimit as sl


@cache
def limits():
    """The limits: created by the service `limits` or an init container, opened by each worker at its first request."""
    return sl.open("/dev/shm/api.limits")["api"]


def application(environ, start_response):
    """A WSGI application."""
    permit = limits().try_acquire()
    if not permit:
        wait = math.ceil(permit.retry_after or 1)
        start_response("429 Too Many Requests", [("Retry-After", str(wait))])
        return [b"later\n"]
    with permit:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done\n"]
