"""The options of integrations as type checkers see them: each option is known, and anything else is an error.

This file is only checked, not run, and an `ignore` that nothing needs is an error.
"""

from __future__ import annotations

from wsgiref.types import WSGIApplication

import shmlimit as sl
from shmlimit import asgi, wsgi


def of_asgi(app: asgi.Application, limits: sl.SetHandle) -> None:
    asgi.LimitMiddleware(
        app,
        limits,
        key=asgi.Header("x-api-key"),
        costs=lambda scope: {"tokens": len(scope["path"])},
        timeout=0.5,
        exempt=lambda scope: scope["path"] == "/health",
        on_error="admit",
        advertise="when_refused",
        fails_with=lambda status: status == 503,
        refund_when=lambda status: status == 502,
        quota_units={"tokens": "content-bytes"},
        policy_prefix="v1.",
        tier="gold",
        overrides={"requests": 500},
    )
    asgi.LimitMiddleware(app, limits=limits)
    asgi.LimitMiddleware(app, limits, kye=asgi.Header("x-api-key"))  # type: ignore[call-arg]
    asgi.LimitMiddleware(app, limits, timeout="5 s")  # type: ignore[arg-type]
    asgi.LimitMiddleware(app, limits, advertise="sometimes")  # type: ignore[arg-type]


def of_wsgi(app: WSGIApplication, limits: sl.SetHandle) -> None:
    wsgi.LimitMiddleware(app, limits, key=lambda environ: str(environ["REMOTE_USER"]), costs={"tokens": 1})
    # The environment is not an object with a path.
    wsgi.LimitMiddleware(app, limits, exempt=lambda environ: bool(environ.path))  # type: ignore[attr-defined]
