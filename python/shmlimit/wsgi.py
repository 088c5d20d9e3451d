"""Limits before a WSGI application: Flask, Django, Bottle, or a plain one.

```python
import shmlimit as sl
from shmlimit.wsgi import Header, LimitMiddleware

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]
app.wsgi_app = LimitMiddleware(app.wsgi_app, limits=limits, key=Header("x-api-key"))
```

The permit of a request is held until the body of the response has ended or the server has closed it, which it does
when the client is gone. If the process is killed, the others take it back. What the middleware answers, and which
fields it adds, is described in `docs/python/web.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from shmlimit import Limits
from shmlimit._by_arguments import Capacities
from shmlimit._web.door import Admission, Advertise, Costs, Door, OnError, is_server_error
from shmlimit._web.keys import ClientAddress, Header, KeyFinder
from shmlimit._web.problem import Answer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["ClientAddress", "Header", "LimitMiddleware"]


class LimitMiddleware:
    """Lets a request through to the application when a set of limits admits it."""

    def __init__(
        self,
        app: WSGIApplication,
        limits: Limits,
        *,
        key: KeyFinder[WSGIEnvironment] | None = None,
        costs: Costs | Callable[[WSGIEnvironment], Costs | None] | None = None,
        timeout: float | timedelta | None = None,
        exempt: Callable[[WSGIEnvironment], bool] | None = None,
        on_error: OnError = "refuse",
        advertise: Advertise = "always",
        fails_with: Callable[[int], bool] = is_server_error,
        quota_units: Mapping[str, str] | None = None,
        policy_prefix: str = "",
        tier: str | Callable[[WSGIEnvironment], str | None] | None = None,
        overrides: Capacities | Callable[[WSGIEnvironment], Capacities | None] | None = None,
    ) -> None:
        """Puts limits before an application.

        Args:
            app: The application.
            limits: The set that every request has to pass.
            key: Whose limits a request is held against, for keyed sets: `Header`, `ClientAddress`, or a callable of
                the environment. One that finds none is answered 400.
            costs: What a request takes, by limit; or a callable of the environment that says so.
            timeout: How long a request may wait in line, and its worker with it, instead of being refused at once.
            exempt: Says of an environment whether it is not limited, as health checks are not.
            on_error: What to do when the limits cannot be asked: `"refuse"` answers 500, `"admit"` lets the request
                through as though it were not limited.
            advertise: Which responses tell how the limits stand: `"always"`, `"when_refused"` or `"never"`.
            fails_with: Which statuses say that the work failed, for adaptive concurrency.
            quota_units: By rate limit or budget, the unit in which clients are told of it, such as
                `"content-bytes"`. They are not told of others.
            policy_prefix: What stands before the names of limits wherever clients read them.
            tier: The tier that the key of a request is put into, and stays in; or a callable of the environment that
                says so. Unless given, or where that is None, it stays in the one that it is in.
            overrides: Which capacities the key of a request has of its own, as `limits` for `Limits.acquire`; or a
                callable of the environment that says so. Of those that are not named, it keeps what it has.
        """
        self.app = app
        self._door: Door[WSGIEnvironment] = Door(
            limits,
            key=key,
            costs=costs,
            timeout=timeout,
            exempt=exempt,
            on_error=on_error,
            advertise=advertise,
            fails_with=fails_with,
            quota_units=quota_units,
            policy_prefix=policy_prefix,
            tier=tier,
            overrides=overrides,
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        decision = self._door.decide(_EnvironmentHead(environ))
        if isinstance(decision, Answer):
            start_response(f"{decision.status} {HTTPStatus(decision.status).phrase}", decision.headers)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [decision.body]
        admission = decision

        def start_limited(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            admission.note_status(int(status[:3]))
            if exc_info is None:
                return start_response(status, headers + admission.fields)
            return start_response(status, headers + admission.fields, exc_info)

        try:
            body = self.app(environ, start_limited)
        except BaseException as error:
            admission.release(failed=isinstance(error, Exception))
            raise
        return _HeldBody(body, admission)


class _HeldBody:
    """The body of a response, under the permit of its request."""

    def __init__(self, body: Iterable[bytes], admission: Admission) -> None:
        self._body = body
        self._admission = admission
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            # Not before the server asks: the first part may be what the application works for.
            if self._parts is None:
                self._parts = iter(self._body)
            return next(self._parts)
        except StopIteration:
            self._admission.release()
            raise
        except BaseException as error:
            self._admission.release(failed=isinstance(error, Exception))
            raise

    def close(self) -> None:
        """Lets go of the application's body, and then of the permit."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._admission.release()


class _EnvironmentHead:
    """What is read of an environment."""

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.request = environ

    @property
    def client_address(self) -> str | None:
        return self.request.get("REMOTE_ADDR") or None

    def header_values(self, name: str) -> list[str]:
        # Servers join what comes more than once with commas.
        variable = name.upper().replace("-", "_")
        if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            variable = f"HTTP_{variable}"
        return [self.request[variable]] if variable in self.request else []
