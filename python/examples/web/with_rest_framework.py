"""A Django REST Framework throttle: nothing changes but where its class comes from, and a directory is named.

Run it: `python python/examples/web/with_rest_framework.py`.
"""

import os

import django
from demonstration import DIRECTORY, main
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

if not settings.configured:
    settings.configure(
        SECRET_KEY="of an example",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["rest_framework"],
        REST_FRAMEWORK={
            # It was rest_framework.throttling.AnonRateThrottle.
            "DEFAULT_THROTTLE_CLASSES": ["shmlimit.rest_framework.AnonRateThrottle"],
            "DEFAULT_THROTTLE_RATES": {"anon": "5/min"},
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "UNAUTHENTICATED_USER": None,
        },
        SHMLIMIT_THROTTLES={"directory": f"{DIRECTORY}/example.throttles"},
    )
    django.setup()

from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response


@api_view(["GET"])
def index(_: Request) -> Response:
    """A page that every address gets five times a minute."""
    return Response(f"from worker {os.getpid()}")


urlpatterns = [path("", index)]

if __name__ == "__main__":
    main("gunicorn", "with_rest_framework:app")
else:
    app = get_wsgi_application()
