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

The permit is held until the response has been sent (before FastAPI 0.118, until the path's function has returned). A
path that needs the permit, to settle what it used, takes it as a parameter:
`permit: Annotated[sl.Permit, Depends(Limited(limits, costs={"tokens": 1500}))]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request
from fastapi import Response as FastAPIResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response

from shmlimit import Limits, Permit
from shmlimit._web.admission import AdmissionControl, Answer
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.keys import Header
from shmlimit._web.options import with_options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmlimit._web.options import LimitOptions

__all__ = ["ClientAddress", "Header", "LimitRefused", "Limited", "problem_response"]


class LimitRefused(HTTPException):
    """The limits did not let a request through.

    By default FastAPI answers with the right status and header fields, and with the problem details as `detail`;
    `problem_response` answers with the problem details themselves.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.problem, dict(answer.fields))
        self.answer = answer
        self.__cause__ = answer.error


async def problem_response(_: StarletteRequest, refused: Exception) -> Response:
    """Answers with problem details: for `add_exception_handler(LimitRefused, problem_response)`."""
    if not isinstance(refused, LimitRefused):
        raise refused
    return Response(refused.answer.body, refused.answer.status, dict(refused.answer.headers))


class Limited:
    """A dependency that admits requests by a set of limits. Its value is the permit, or None for exempt requests.

    If a path returns its own `Response`, FastAPI sends that unchanged, without the RateLimit fields. If all responses
    should have them, use `shmlimit.asgi.LimitMiddleware`.

    `fails_with` is asked about the status of an `HTTPException`; any other exception means that the work failed.
    """

    @with_options_of(AdmissionControl.__init__)
    def __init__(self, limits: Limits, **options: Unpack[LimitOptions[HTTPConnection]]) -> None:
        """Makes a dependency.

        Args:
            limits: The set that every request must pass.
            **options: What to ask of the limits, and how to treat requests: see the table in `docs/python/web.md`.
        """
        self._control: AdmissionControl[HTTPConnection] = AdmissionControl(limits, **options)

    async def __call__(self, request: Request, response: FastAPIResponse) -> AsyncIterator[Permit | None]:
        """Asks the limits before the path's function is called, and releases the permit after the response."""
        decision = await self._control.decide_async(_RequestHead(request))
        if isinstance(decision, Answer):
            raise LimitRefused(decision)
        admission = decision
        try:
            for name, value in admission.fields:
                response.headers.append(name, value)
            yield admission.permit
        except StarletteHTTPException as answered:
            await admission.note_status_async(answered.status_code)
            raise
        except Exception:
            admission.release(failed=True)
            raise
        finally:
            admission.release()


class _RequestHead:
    """What the limits read from a request."""

    def __init__(self, request: HTTPConnection) -> None:
        self.request = request

    @property
    def client_address(self) -> str | None:
        client = self.request.client
        return client.host if client is not None and client.host else None

    def header_values(self, name: str) -> list[str]:
        return self.request.headers.getlist(name)
