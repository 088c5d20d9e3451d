"""What the middlewares of ASGI and WSGI have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from shmlimit import SetHandle
from shmlimit._web.admission import AdmissionControl
from shmlimit._web.head import Request
from shmlimit._web.options import with_options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmlimit._web.options import LimitOptions

Application = TypeVar("Application")


class Middleware(Generic[Application, Request]):
    """Lets a request through to the application if a set of limits admits it."""

    _can_await: ClassVar[bool] = True
    """Whether options may be asynchronous."""

    @with_options_of(AdmissionControl.__init__)
    def __init__(self, app: Application, limits: SetHandle, **options: Unpack[LimitOptions[Request]]) -> None:
        """Puts limits in front of an application.

        Args:
            app: The application.
            limits: The set that every request must pass.
            **options: What to ask of the limits, and how to treat requests: see the table in `docs/python/web.md`.
        """
        self.app = app
        self._control: AdmissionControl[Request] = AdmissionControl(limits, **options)
        if not self._can_await:
            self._control.refuse_asynchronous()
