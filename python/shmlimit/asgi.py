"""Limits in front of an ASGI application: Starlette, FastAPI, Litestar, Quart, or a plain one.

```python
import shmlimit as sl
from shmlimit.asgi import Header, LimitMiddleware

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]
app = LimitMiddleware(app, limits=limits, key=Header("x-api-key"))
```

A request's permit is held until the whole body of the response has been sent, the client is gone, or the application
has returned. If the process is killed, the others take the permit back. `docs/python/web.md` describes the middleware's
responses and header fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from shmlimit._web.admission import Admission, Answer, give_back
from shmlimit._web.asgi_fields import encoded
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.departure import ClientGone, Departures, Message, Receive
from shmlimit._web.head import DescribedHead
from shmlimit._web.keys import Header
from shmlimit._web.middleware import Middleware

__all__ = ["ClientAddress", "Header", "LimitMiddleware", "request_body"]

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


_BODY = "shmlimit.body"


async def request_body(scope: Scope) -> bytes:
    """Reads the body of a request, for options of `LimitMiddleware` that depend on it, such as `costs`.

    ```python
    async def costs(scope):
        return {"tokens": json.loads(await request_body(scope))["max_tokens"]}
    ```

    The application receives the body all the same. Until then, all of the body is in memory: limit its size in the
    server or the proxy.

    Args:
        scope: The scope of the request, which the option is called with.

    Returns:
        The body.

    Raises:
        LookupError: The scope is not that of an HTTP request that a `LimitMiddleware` decides on.
        OSError: The client has left. No one needs an answer.
    """
    read: Callable[[], Awaitable[bytes]] | None = scope.get(_BODY)
    if read is None:
        raise LookupError("only options of LimitMiddleware can read the body, and only that of an HTTP request")
    return await read()


class LimitMiddleware(Middleware[Application, Scope]):
    """Lets a request through to the application if a set of limits admits it.

    HTTP requests and WebSocket connections are limited; a WebSocket holds its permit until it is closed. Other scopes,
    such as `lifespan`, pass.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one scope."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        head = _ScopeHead(scope)
        if scope["type"] == "websocket":
            decision = await self._control.decide_async(head)
            if isinstance(decision, Admission):
                await self._serve(decision, scope, receive, send)
            else:
                await _deny(decision, scope, receive, send)
            return
        departures = Departures(receive)
        scope[_BODY] = departures.body
        try:
            if self._control.waits:
                waited = await departures.unless_left(self._control.decide_async(head), give_back)
                if waited is None:
                    return
                decision = waited
            else:
                decision = await self._control.decide_async(head)
            if isinstance(decision, Admission):
                await self._serve(decision, scope, departures.receive, send, departures.has_left)
            else:
                await _answer(decision, "http.response", send, without_body=scope["method"] == "HEAD")
        except ClientGone:
            # Nobody is left to answer.
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
                await admission.note_status_async(message.get("status", 101))
                has_trailers = message.get("trailers", False)
                message = {**message, "headers": [*message.get("headers", ()), *encoded(admission.fields)]}
            try:
                await send(message)
                if kind == "http.response.body" and message.get("more_body", False) and has_left():
                    raise ClientGone("the client has left before the end of its response")
            except BaseException:
                # The client is gone, which is not the application's failure.
                admission.release()
                raise
            if (
                (kind == "http.response.body" and not message.get("more_body", False) and not has_trailers)
                or (kind == "http.response.trailers" and not message.get("more_trailers", False))
                or kind == "http.response.pathsend"
                or kind == "websocket.close"
            ):
                # Whatever the application does after its response needs no permit.
                admission.release()

        try:
            await self.app(scope, receive, send_limited)
        except Exception:
            admission.release(failed=True)
            raise
        finally:
            # Also if the request was cancelled, as happens when the client leaves.
            admission.release()


class _ScopeHead(DescribedHead[Scope]):
    """What the limits read from a scope."""

    METHOD = "method"

    @property
    def client_address(self) -> str | None:
        client = self.request.get("client")
        return str(client[0]) if client and client[0] else None

    def header_values(self, name: str) -> list[str]:
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for header, value in self.request["headers"] if header.lower() == wanted]


async def _answer(answer: Answer, prefix: str, send: Send, *, without_body: bool = False) -> None:
    await send({"type": f"{prefix}.start", "status": answer.status, "headers": encoded(answer.headers)})
    await send({"type": f"{prefix}.body", "body": b"" if without_body else answer.body})


async def _deny(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    """Rejects a WebSocket before its handshake: with the problem details if the server can, else with its own 403."""
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        await _answer(answer, "websocket.http.response", send)
    else:
        await send({"type": "websocket.close", "code": 1008})
