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

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta

from fastapi import HTTPException, Request
from fastapi import Response as FastAPIResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response

from shmlimit import Limits, Permit
from shmlimit._by_arguments import Capacities
from shmlimit._web.door import Advertise, Costs, Door, OnError, is_server_error
from shmlimit._web.keys import ClientAddress, Header, KeyFinder
from shmlimit._web.problem import Answer

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
    is. Where all responses should tell, use `shmlimit.asgi.LimitMiddleware`.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        key: KeyFinder[HTTPConnection] | None = None,
        costs: Costs | Callable[[HTTPConnection], Costs | None] | None = None,
        timeout: float | timedelta | None = None,
        exempt: Callable[[HTTPConnection], bool] | None = None,
        on_error: OnError = "refuse",
        advertise: Advertise = "always",
        fails_with: Callable[[int], bool] = is_server_error,
        quota_units: Mapping[str, str] | None = None,
        policy_prefix: str = "",
        tier: str | Callable[[HTTPConnection], str | None] | None = None,
        overrides: Capacities | Callable[[HTTPConnection], Capacities | None] | None = None,
    ) -> None:
        """Makes a dependency.

        Args:
            limits: The set that every request has to pass.
            key: Whose limits a request is held against, for keyed sets: `Header`, `ClientAddress`, or a callable of
                the request. One that finds none is answered 400.
            costs: What a request takes, by limit; or a callable of the request that says so.
            timeout: How long a request may wait in line instead of being refused at once.
            exempt: Says of a request whether it is not limited.
            on_error: What to do when the limits cannot be asked: `"refuse"` answers 500, `"admit"` lets the request
                through as though it were not limited.
            advertise: Which responses tell how the limits stand: `"always"`, `"when_refused"` or `"never"`.
            fails_with: Which statuses of an `HTTPException` say that the work failed, for adaptive concurrency. Any
                other exception does.
            quota_units: By rate limit or budget, the unit in which clients are told of it, such as
                `"content-bytes"`. They are not told of others.
            policy_prefix: What stands before the names of limits wherever clients read them.
            tier: The tier that the key of a request is put into, and stays in; or a callable of the request that
                says so. Unless given, or where that is None, it stays in the one that it is in.
            overrides: Which capacities the key of a request has of its own, as `limits` for `Limits.acquire`; or a
                callable of the request that says so. Of those that are not named, it keeps what it has.
        """
        self._door: Door[HTTPConnection] = Door(
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

    async def __call__(self, request: Request, response: FastAPIResponse) -> AsyncIterator[Permit | None]:
        """Asks the limits before the path's function is called, and gives back what it took after the response."""
        decision = await self._door.decide_async(_RequestHead(request))
        if isinstance(decision, Answer):
            raise LimitRefused(decision)
        admission = decision
        for name, value in admission.fields:
            response.headers.append(name, value)
        try:
            yield admission.permit
        except StarletteHTTPException as answered:
            admission.note_status(answered.status_code)
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
