"""A site whose limits change from release to release: it opens what the declaration of the current release names."""

import os
from pathlib import Path

import shmlimit as sl

DIRECTORY = Path(os.environ["DIRECTORY"])
RELEASE = (DIRECTORY / "release").read_text()
SEGMENT = sl.open(DIRECTORY / "app.limits.d", DIRECTORY / "limits.toml")


def application(environment, start_response):
    """Answers with its release and process, and counts a call against the set that the path names."""
    name = environment["PATH_INFO"].strip("/")
    status = "200 OK" if name == "ready" or SEGMENT[name].check() else "429 Too Many Requests"
    start_response(status, [("Content-Type", "text/plain")])
    return [f"{RELEASE} {os.getpid()}".encode()]
