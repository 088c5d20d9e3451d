"""The middleware for Django, in a one-file site.

Run it: `python python/examples/web/with_django.py`.
"""

import os

from demonstration import DIRECTORY, main
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import shmlimit as sl
from shmlimit.django import ClientAddress

if not settings.configured:
    settings.configure(
        SECRET_KEY="of an example",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=["shmlimit.django.LimitMiddleware"],
        SHMLIMIT={
            "segment": f"{DIRECTORY}/example.limits",
            "config": sl.LimitSet(
                "site",
                [sl.Calls("requests", 5, "60s", algorithm="sliding_window"), sl.Concurrency("in_flight", 8)],
                keyed=10_000,
            ),
            "set": "site",
            "key": ClientAddress(),
        },
    )


def index(_: HttpRequest) -> HttpResponse:
    """A page that every address gets five times a minute."""
    return HttpResponse(f"from worker {os.getpid()}")


urlpatterns = [path("", index)]

if __name__ == "__main__":
    main("gunicorn", "with_django:app")
else:
    app = get_wsgi_application()
