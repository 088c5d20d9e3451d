"""Limits for a Django site, as middleware for WSGI and ASGI.

```python
MIDDLEWARE = ["shmlimit.django.LimitMiddleware", ...]
SHMLIMIT = {
    "segment": "/dev/shm/mysite.limits",
    "config": BASE_DIR / "limits.toml",     # or declarations: [sl.LimitSet(...)]
    "set": "requests",
    "key": ClientAddress(),                 # or Header("x-api-key"), or the dotted path of a function of the request
}
```

The permit is held until the response's body has been sent, even if it is streamed, or its client is gone. If the
process is killed, the others take the permit back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

import shmlimit
from shmlimit._web.admission import Admission, AdmissionControl, Answer
from shmlimit._web.client_address import ClientAddress
from shmlimit._web.django_request import context_of
from shmlimit._web.keys import Header
from shmlimit._web.refused_inside import Context

__all__ = ["ClientAddress", "Header", "LimitMiddleware"]

GetResponse = Callable[[HttpRequest], Any]


class LimitMiddleware:
    """Lets a request through to the site if a set of limits admits it.

    `SHMLIMIT` in Django's settings has `segment`, the file; `set`, the name of the set; and optionally `config`, the
    declaration, `on_mismatch`, `version` and `log_requests`, as for `shmlimit.open`. Its other entries are those of
    `shmlimit.asgi.LimitMiddleware`: `key`, `costs`, `timeout`, `exempt`, `on_error`, `advertise`, `fails_with`,
    `refund_when`, `quota_units`, `policy_prefix`, `tier` and `overrides`. Callables get the request, and may be dotted
    paths, except for `tier`, where a string is the tier's name. Under ASGI they may be asynchronous.

    For several sets, derive a middleware class for each, with its own settings in `options`.
    """

    sync_capable = True
    async_capable = True

    options: dict[str, Any] | None = None
    """Settings to use instead of `SHMLIMIT`."""

    def __init__(self, get_response: GetResponse) -> None:
        options = dict(self.options if self.options is not None else getattr(settings, "SHMLIMIT", {}))
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        for name in ("key", "costs", "exempt", "fails_with", "refund_when", "overrides"):
            if isinstance(options.get(name), str):
                options[name] = import_string(options[name])
        try:
            segment = shmlimit.open(
                options.pop("segment", None),
                options.pop("config", None),
                on_mismatch=options.pop("on_mismatch", "apply"),
                version=options.pop("version", None),
                log_requests=options.pop("log_requests", False),
            )
            limits = segment[options.pop("set")]
        except KeyError as missing:
            raise ImproperlyConfigured(f"SHMLIMIT must name the set of limits to ask: {missing}") from missing
        self._control: AdmissionControl[HttpRequest] = AdmissionControl(limits, **options)
        if not self._is_async:
            self._control.refuse_asynchronous()

    def __call__(self, request: HttpRequest) -> Any:
        """Serves one request; returns a coroutine if the site is asynchronous."""
        if self._is_async:
            return self._serve_async(request)
        decision = self._control.decide(_RequestHead(request))
        if isinstance(decision, Answer):
            return _answered(decision)
        get_response: Callable[[HttpRequest], HttpResponseBase] = self._get_response
        with decision.released_by_exceptions():
            response = get_response(request)
            decision.note_status(response.status_code)
            return _held(response, decision)

    async def _serve_async(self, request: HttpRequest) -> HttpResponseBase:
        decision = await self._control.decide_async(_RequestHead(request))
        if isinstance(decision, Answer):
            return _answered(decision)
        get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]] = self._get_response
        with decision.released_by_exceptions():
            response = await get_response(request)
            await decision.note_status_async(response.status_code)
            return _held(response, decision)


class _RequestHead:
    """What the limits read from a request."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    @property
    def context(self) -> Context:
        return context_of(self.request)

    @property
    def method(self) -> str:
        return self.request.method or ""

    @property
    def client_address(self) -> str | None:
        return self.request.META.get("REMOTE_ADDR") or None

    def header_values(self, name: str) -> list[str]:
        # The server joins repeated headers with commas.
        value = self.request.headers.get(name)
        return [] if value is None else [value]


def _held(response: HttpResponseBase, admission: Admission) -> HttpResponseBase:
    """Makes the response hold the permit until it has been sent."""
    for name, value in admission.fields:
        # The fields are lists, and others may have added items.
        response[name] = f"{response[name]}, {value}" if name in response else value
    if isinstance(response, StreamingHttpResponse):
        # `close` comes later, and does not know whether the body broke off.
        if response.is_async:
            response.streaming_content = _parts_async(
                cast("AsyncIterator[bytes]", response.streaming_content), admission
            )
        else:
            response.streaming_content = _parts(cast("Iterator[bytes]", response.streaming_content), admission)
    close: Callable[[], None] | None = response.close

    def close_and_release() -> None:
        nonlocal close
        # Breaks the reference cycle, so that the response does not wait for the garbage collector.
        close_once, close = close, None
        try:
            if close_once is not None:
                close_once()
        finally:
            admission.release()

    response.close = close_and_release
    return response


def _parts(parts: Iterator[bytes], admission: Admission) -> Iterator[bytes]:
    with admission.released_by_exceptions():
        yield from parts
    admission.release()


async def _parts_async(parts: AsyncIterator[bytes], admission: Admission) -> AsyncIterator[bytes]:
    with admission.released_by_exceptions():
        async for part in parts:
            yield part
    admission.release()


def _answered(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    for name, value in answer.headers:
        response[name] = value
    return response
