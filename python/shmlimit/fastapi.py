"""Limits of FastAPI's paths, as a dependency.

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

The permit is held until the response has been sent (with FastAPI 0.118 or later; before, until the path's function
has returned). A path that wants it, to settle what it used, takes it as a parameter:
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
    """A request that the limits did not let through.

    FastAPI answers it with the status and the fields that it should have, and with the problem as `detail`;
    `problem_response` answers it with the problem itself.
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
    """A dependency that a set of limits has to admit: it gives the permit, or none where the request is not limited.

    A response of a path that returns a `Response` of its own is not given the RateLimit fields: FastAPI takes it as it
    is. Where all responses should have them, use `shmlimit.asgi.LimitMiddleware`.

    `fails_with` is asked of the statuses of an `HTTPException`; any other exception says that the work failed.
    """

    @with_options_of(AdmissionControl.__init__)
    def __init__(self, limits: Limits, **options: Unpack[LimitOptions[HTTPConnection]]) -> None:
        """Makes a dependency.

        Args:
            limits: The set that every request has to pass.
            **options: What is asked of the limits, and what becomes of a request: `docs/python/web.md` has a table.
        """
        self._control: AdmissionControl[HTTPConnection] = AdmissionControl(limits, **options)

    async def __call__(self, request: Request, response: FastAPIResponse) -> AsyncIterator[Permit | None]:
        """Asks the limits before the path's function is called, and gives back what it took after the response."""
        decision = await self._control.decide_async(_RequestHead(request))
        if isinstance(decision, Answer):
            raise LimitRefused(decision)
        admission = decision
        for name, value in admission.fields:
            response.headers.append(name, value)
        try:
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
    """What is read of a request."""

    def __init__(self, request: HTTPConnection) -> None:
        self.request = request

    @property
    def client_address(self) -> str | None:
        client = self.request.client
        return client.host if client is not None and client.host else None

    def header_values(self, name: str) -> list[str]:
        return self.request.headers.getlist(name)
