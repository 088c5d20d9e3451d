"""A Django site in one file, with its own handlers for WSGI and ASGI."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

DIRECTORY = os.environ["DIRECTORY"]

settings.configure(
    SECRET_KEY="of the tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["rest_framework"],
    MIDDLEWARE=["shmlimit.django.LimitMiddleware"],
    SHMLIMIT={"segment": f"{DIRECTORY}/segment", "set": "api", "exempt": "django_site.is_exempt"},
    SHMLIMIT_THROTTLES={"directory": f"{DIRECTORY}/throttles"},
    REST_FRAMEWORK={
        "DEFAULT_THROTTLE_CLASSES": ["shmlimit.rest_framework.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "5/hour"},
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
    },
)
django.setup()

from rest_framework.decorators import api_view  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402


def is_exempt(request: HttpRequest) -> bool:
    return request.path in ("/ready", "/throttled")


def ready(_: HttpRequest) -> HttpResponse:
    return HttpResponse(str(os.getpid()))


def short(_: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{os.getpid()}\n")


def stay(_: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        while True:
            yield b"%d\n" % os.getpid() + b"." * 65536
            time.sleep(0.01)

    return StreamingHttpResponse(parts())


async def stay_async(_: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"%d\n" % os.getpid() + b"." * 65536
            await asyncio.sleep(0.01)

    return StreamingHttpResponse(parts())


@api_view(["GET"])
def throttled(_: Request) -> Response:
    return Response(os.getpid())


urlpatterns = [
    path("ready", ready),
    path("", short),
    path("stay", stay),
    path("stay_async", stay_async),
    path("throttled", throttled),
]

wsgi_app = get_wsgi_application()
asgi_app = get_asgi_application()
