"""The example's application, with a path on which a worker takes everything at once and keeps it until it is killed."""

import os
import threading

from app import application as answered
from app import limits


def application(environ, start_response):
    """A WSGI application."""
    if environ["PATH_INFO"] != "/held":
        return answered(environ, start_response)
    permit = limits().acquire({"in_flight": 16}, timeout=20)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return kept(permit)


def kept(permit):
    """The body: the id of the process that has the permit, and then no end."""
    with permit:
        yield f"{os.getpid()}\n".encode()
        threading.Event().wait()
