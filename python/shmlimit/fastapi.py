"""Limits for FastAPI path operations, as a dependency.

```python
import shmlimit as sl
from fastapi import Depends, FastAPI
from shmlimit.fastapi import ClientAddress, Limited, LimitRefused, problem_response

limits = sl.open("/dev/shm/api.limits", config="limits.toml")["api"]
app = FastAPI()
app.add_exception_handler(LimitRefused, problem_response)

@app.get("/search", dependencies=[Depends(Limited(limits, key=ClientAddress()))])
async def search() -> str: ...
```

The permit is held until the response has been sent (before FastAPI 0.118, until the path's function has returned), but
not while background tasks run; on a WebSocket route, until the socket is closed. A path that needs the permit, to
settle what it used, takes it as a parameter:
`permit: Annotated[sl.Permit, Depends(Limited(limits, costs={"tokens": 1500}))]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

from fastapi import BackgroundTasks, HTTPException, WebSocketException
from fastapi import Response as FastAPIResponse
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from shmlimit import Permit, SetHandle
from shmlimit._web.admission import Admission, AdmissionControl, Answer, give_back
from shmlimit._web.asgi_fields import encoded
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.departure import Departures, Message
from shmlimit._web.keys import Header
from shmlimit._web.options import with_options_of
from shmlimit._web.refused_inside import Context

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmlimit._web.options import LimitOptions

__all__ = ["ClientAddress", "Header", "LimitRefused", "Limited", "problem_response"]

# A status that servers log for requests whose clients did not wait for the answer.
_CLIENT_CLOSED_REQUEST = 499


class LimitRefused(HTTPException):
    """The limits did not let a request through.

    By default FastAPI answers with the right status and header fields, and with the problem details as `detail`;
    `problem_response` answers with the problem details themselves.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.problem, dict(answer.fields))
        self.answer = answer
        self.__cause__ = answer.error


async def problem_response(_: Request, refused: Exception) -> Response:
    """Answers with problem details: for `add_exception_handler(LimitRefused, problem_response)`."""
    if not isinstance(refused, LimitRefused):
        raise refused
    return Response(refused.answer.body, refused.answer.status, dict(refused.answer.headers))


class Limited:
    """A dependency that admits requests by a set of limits. Its value is the permit, or None for exempt requests.

    WebSocket routes may depend on it, too: a connection that is refused is answered before its handshake, with the
    problem details if the server can send them, otherwise with 403.

    If a path returns its own `Response`, FastAPI sends it unchanged, without the RateLimit fields, and if it has a
    `background` of its own, the permit is held until that ends. If all responses should have the fields, use
    `shmlimit.asgi.LimitMiddleware`.

    `fails_with` is asked about the status of an `HTTPException`; any other exception means that the work failed.
    """

    @with_options_of(AdmissionControl.__init__)
    def __init__(self, limits: SetHandle, **options: Unpack[LimitOptions[HTTPConnection]]) -> None:
        """Makes a dependency.

        Args:
            limits: The set that every request must pass.
            **options: What to ask of the limits, and how to treat requests: see the table in `docs/python/web.md`.
        """
        self._control: AdmissionControl[HTTPConnection] = AdmissionControl(limits, **options)

    async def __call__(
        self, connection: HTTPConnection, response: FastAPIResponse, background: BackgroundTasks
    ) -> AsyncIterator[Permit | None]:
        """Asks the limits before the path's function is called, and releases the permit after the response."""
        admission = await self._admit(connection)
        if isinstance(connection, WebSocket):
            _release_when_closed(connection, admission)
        else:
            _release_before(background, admission)
            for name, value in admission.fields:
                response.headers.append(name, value)
        try:
            yield admission.permit
        except StarletteHTTPException as answered:
            await admission.note_status_async(answered.status_code)
            raise
        except (WebSocketDisconnect, WebSocketException):
            # The client has left, or is told why its socket is closed.
            raise
        except Exception:
            admission.release(failed=True)
            raise
        finally:
            admission.release()

    async def _admit(self, connection: HTTPConnection) -> Admission:
        head = _RequestHead(connection)
        if self._control.waits and isinstance(connection, Request):
            decision = await _unless_left(connection, self._control.decide_async(head))
        else:
            decision = await self._control.decide_async(head)
        if isinstance(decision, Admission):
            return decision
        if isinstance(connection, WebSocket) and "websocket.http.response" not in connection.scope.get(
            "extensions", {}
        ):
            raise WebSocketException(1008, "refused by the limits") from decision.error
        raise LimitRefused(decision)


async def _unless_left(request: Request, decision: Coroutine[Any, Any, Admission | Answer]) -> Admission | Answer:
    """Waits for the decision, and gives it up if the client leaves.

    Raises:
        HTTPException: The client has left. Nobody gets the answer.
    """
    departures = Departures(request.receive)
    # The path's function may read the body later, and a part of it may have come while the request waited.
    request._receive = departures.receive
    try:
        decided = await departures.unless_left(decision, give_back)
    finally:
        departures.stop()
    if decided is None:
        raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client has left")
    return decided


def _release_before(background: BackgroundTasks, admission: Admission) -> None:
    """Releases the permit when the response has been sent, before the tasks that run afterwards."""

    async def release() -> None:
        admission.release()

    background.tasks.insert(0, BackgroundTask(release))


def _release_when_closed(socket: WebSocket, admission: Admission) -> None:
    """Releases the permit when the path closes its socket, or finds that the client has; adds the fields."""
    send = socket._send

    async def send_limited(message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            message = {**message, "headers": [*message.get("headers", ()), *encoded(admission.fields)]}
        try:
            await send(message)
        except BaseException:
            admission.release()
            raise
        if kind == "websocket.close":
            admission.release()

    socket._send = send_limited


class _RequestHead:
    """What the limits read from a request."""

    def __init__(self, request: HTTPConnection) -> None:
        self.request = request

    @property
    def context(self) -> Context:
        return self.request.scope

    @property
    def method(self) -> str:
        return str(self.request.scope.get("method", ""))

    @property
    def client_address(self) -> str | None:
        client = self.request.client
        return client.host if client is not None and client.host else None

    def header_values(self, name: str) -> list[str]:
        return self.request.headers.getlist(name)
