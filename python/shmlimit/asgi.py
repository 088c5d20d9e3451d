"""Limits before an ASGI application: Starlette, FastAPI, Litestar, Quart, or a plain one.

```python
import shmlimit as sl
from shmlimit.asgi import Header, LimitMiddleware

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]
app = LimitMiddleware(app, limits=limits, key=Header("x-api-key"))
```

The permit of a request is held until the body of the response has been sent to its end, its client is gone, or the
application has returned. If the process is killed, the others take it back. What the middleware answers, and which
fields it adds, is described in `docs/python/web.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import timedelta
from typing import Any, TypeAlias

from shmlimit import Limits
from shmlimit._by_arguments import Capacities
from shmlimit._web.departure import ClientGone, Departures, Message, Receive
from shmlimit._web.door import Admission, Advertise, Costs, Door, OnError, is_server_error
from shmlimit._web.keys import ClientAddress, Header, KeyFinder
from shmlimit._web.problem import Answer

__all__ = ["ClientAddress", "Header", "LimitMiddleware"]

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class LimitMiddleware:
    """Lets a request through to the application when a set of limits admits it.

    Requests of HTTP and WebSocket connections are limited; a WebSocket holds its permit until it is closed. Other
    scopes, such as `lifespan`, pass.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits,
        *,
        key: KeyFinder[Scope] | None = None,
        costs: Costs | Callable[[Scope], Costs | None] | None = None,
        timeout: float | timedelta | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        on_error: OnError = "refuse",
        advertise: Advertise = "always",
        fails_with: Callable[[int], bool] = is_server_error,
        quota_units: Mapping[str, str] | None = None,
        policy_prefix: str = "",
        tier: str | Callable[[Scope], str | None] | None = None,
        overrides: Capacities | Callable[[Scope], Capacities | None] | None = None,
    ) -> None:
        """Puts limits before an application.

        Args:
            app: The application.
            limits: The set that every request has to pass.
            key: Whose limits a request is held against, for keyed sets: `Header`, `ClientAddress`, or a callable of
                the scope. One that finds none is answered 400.
            costs: What a request takes, by limit; or a callable of the scope that says so.
            timeout: How long a request may wait in line instead of being refused at once.
            exempt: Says of a scope whether it is not limited, as health checks are not.
            on_error: What to do when the limits cannot be asked: `"refuse"` answers 500, `"admit"` lets the request
                through as though it were not limited.
            advertise: Which responses tell how the limits stand: `"always"`, `"when_refused"` or `"never"`.
            fails_with: Which statuses say that the work failed, for adaptive concurrency.
            quota_units: By rate limit or budget, the unit in which clients are told of it, such as
                `"content-bytes"`. They are not told of others.
            policy_prefix: What stands before the names of limits wherever clients read them.
            tier: The tier that the key of a request is put into, and stays in; or a callable of the scope that
                says so. Unless given, or where that is None, it stays in the one that it is in.
            overrides: Which capacities the key of a request has of its own, as `limits` for `Limits.acquire`; or a
                callable of the scope that says so. Of those that are not named, it keeps what it has.
        """
        self.app = app
        self._door: Door[Scope] = Door(
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one scope."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        head = _ScopeHead(scope)
        if scope["type"] == "websocket":
            decision = await self._door.decide_async(head)
            if isinstance(decision, Admission):
                await self._serve(decision, scope, receive, send)
            else:
                await _deny(decision, scope, receive, send)
            return
        departures = Departures(receive)
        try:
            if self._door.waits:
                waited = await departures.unless_left(self._door.decide_async(head), _give_back)
                if waited is None:
                    return
                decision = waited
            else:
                decision = self._door.decide(head)
            if isinstance(decision, Admission):
                await self._serve(decision, scope, departures.receive, send, departures.has_left)
            else:
                await _answer(decision, "http.response", send, without_body=scope["method"] == "HEAD")
        except ClientGone:
            # Nobody is there to be told.
            return
        finally:
            departures.stop()

    async def _serve(
        self,
        admission: Admission,
        scope: Scope,
        receive: Receive,
        send: Send,
        has_left: Callable[[], bool] = lambda: False,
    ) -> None:
        has_trailers = False

        async def send_limited(message: Message) -> None:
            nonlocal has_trailers
            kind = message["type"]
            if kind in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                admission.note_status(message.get("status", 101))
                has_trailers = message.get("trailers", False)
                message = {**message, "headers": [*message.get("headers", ()), *_encoded(admission.fields)]}
            try:
                await send(message)
                if kind == "http.response.body" and message.get("more_body", False) and has_left():
                    raise ClientGone("the client has left before the end of its response")
            except BaseException:
                # The client is gone, which is no failure of the application.
                admission.release()
                raise
            if (
                (kind == "http.response.body" and not message.get("more_body", False) and not has_trailers)
                or (kind == "http.response.trailers" and not message.get("more_trailers", False))
                or kind == "http.response.pathsend"
                or kind == "websocket.close"
            ):
                # Not kept for what the application does after its response.
                admission.release()

        try:
            await self.app(scope, receive, send_limited)
        except Exception:
            admission.release(failed=True)
            raise
        finally:
            # Also where the request was cancelled, as it is when its client leaves.
            admission.release()


class _ScopeHead:
    """What is read of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.request = scope

    @property
    def client_address(self) -> str | None:
        client = self.request.get("client")
        return str(client[0]) if client and client[0] else None

    def header_values(self, name: str) -> list[str]:
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for header, value in self.request["headers"] if header.lower() == wanted]


def _give_back(decision: Admission | Answer) -> None:
    if isinstance(decision, Admission):
        decision.release()


async def _answer(answer: Answer, prefix: str, send: Send, *, without_body: bool = False) -> None:
    await send({"type": f"{prefix}.start", "status": answer.status, "headers": _encoded(answer.headers)})
    await send({"type": f"{prefix}.body", "body": b"" if without_body else answer.body})


async def _deny(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    """Turns a WebSocket away before its handshake: with the problem where the server can, else with its own 403."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        await _answer(answer, "websocket.http.response", send)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _encoded(fields: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
