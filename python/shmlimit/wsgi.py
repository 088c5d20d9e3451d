"""Limits in front of a WSGI application: Flask, Django, Bottle, or a plain one.

```python
import shmlimit as sl
from shmlimit.wsgi import Header, LimitMiddleware

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]
app.wsgi_app = LimitMiddleware(app.wsgi_app, limits=limits, key=Header("x-api-key"))
```

A request's permit is held until the response's body has ended or the server has closed it, as it does when the client
is gone. If the process is killed, the others take the permit back. `docs/python/web.md` describes the middleware's
responses and header fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias

from shmlimit._web.admission import Admission, Answer
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.head import DescribedHead
from shmlimit._web.keys import Header
from shmlimit._web.middleware import Middleware

__all__ = ["ClientAddress", "Header", "LimitMiddleware"]

WSGIEnvironment: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WSGIApplication: TypeAlias = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


class LimitMiddleware(Middleware[WSGIApplication, WSGIEnvironment]):
    """Lets a request through to the application if a set of limits admits it."""

    _can_await = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        decision = self._control.decide(_EnvironmentHead(environ))
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

        with admission.released_by_exceptions():
            body = self.app(environ, start_limited)
        return _HeldBody(body, admission)


class _HeldBody:
    """The body of a response, which holds its request's permit."""

    def __init__(self, body: Iterable[bytes], admission: Admission) -> None:
        self._body = body
        self._admission = admission
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            # Only when the server asks: making the first part may be the application's real work.
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
        """Closes the application's body, and then releases the permit."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._admission.release()


class _EnvironmentHead(DescribedHead[WSGIEnvironment]):
    """What the limits read from an environment."""

    METHOD = "REQUEST_METHOD"

    @property
    def client_address(self) -> str | None:
        return self.request.get("REMOTE_ADDR") or None

    def header_values(self, name: str) -> list[str]:
        # Servers join repeated headers with commas.
        variable = name.upper().replace("-", "_")
        if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            variable = f"HTTP_{variable}"
        return [self.request[variable]] if variable in self.request else []
