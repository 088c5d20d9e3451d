"""What the integrations with Django share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.http import HttpRequest

    from shmlimit._web.refused_inside import Context


def context_of(request: HttpRequest) -> Context:
    """The scope of a request in ASGI, and its environment in WSGI: shared with middlewares around Django."""
    context: Context = getattr(request, "scope", request.META)
    return context
