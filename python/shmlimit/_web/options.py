"""The options that all integrations share."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from shmlimit._by_arguments import Costs, Overrides
from shmlimit._web.head import Request
from shmlimit._web.keys import KeyFinder

if TYPE_CHECKING:
    from datetime import timedelta

    from typing_extensions import TypedDict

    class LimitOptions(TypedDict, Generic[Request], total=False):
        """What an integration does beyond asking a set of limits.

        Callables get the framework's own request: the scope in ASGI, the environment in WSGI. They may be asynchronous
        if the application is; otherwise that is a `TypeError`.
        """

        key: KeyFinder[Request] | None
        """The key whose limits a request counts against, for keyed sets.

        `Header`, `ClientAddress`, or a callable of the request. A request for which it finds no key is answered 400.
        """

        costs: Costs | Callable[[Request], Costs | Awaitable[Costs | None] | None] | None
        """What a request takes, by limit; or a callable of the request that returns it."""

        timeout: float | timedelta | None
        """How long a request may wait in the queue instead of being refused at once.

        In WSGI, the wait occupies a worker.
        """

        exempt: Callable[[Request], bool | Awaitable[bool]] | None
        """Whether a request is exempt from the limits, as health checks may be."""

        on_error: OnError
        """What to do when the limits cannot be asked.

        `"refuse"` answers 500, `"admit"` passes the request on as if it were not limited. This does not apply when the
        store of limits that hosts share is out: that is a refusal, answered 503.
        """

        advertise: Advertise
        """Which responses report the state of the limits: `"always"`, `"when_refused"` or `"never"`."""

        fails_with: Callable[[int], bool | Awaitable[bool]]
        """Which statuses mean that the work failed, for adaptive concurrency."""

        refund_when: Callable[[int], bool | Awaitable[bool]] | None
        """Which statuses mean that the request never happened, so that all that it took comes back, holds and rates.

        In addition to refusals by limits further in. None gives nothing back, not even for those.
        """

        quota_units: Mapping[str, str] | None
        """For each rate limit or budget, the unit in which clients know it, such as `"content-bytes"`.

        Others are left out of the header fields.
        """

        policy_prefix: str
        """A prefix for the names of limits wherever clients read them."""

        tier: str | Callable[[Request], str | Awaitable[str | None] | None] | None
        """The tier to put a request's key into, where it stays; or a callable of the request that returns it.

        By default, or if the result is None, the key stays in its tier.
        """

        overrides: Overrides | Callable[[Request], Overrides | Awaitable[Overrides | None] | None] | None
        """The own capacities of a request's key, as for `SetHandle.acquire`.

        Or a callable of the request that returns them. Limits that are not named keep the capacity they have.
        """


Advertise: TypeAlias = Literal["always", "when_refused", "never"]
OnError: TypeAlias = Literal["refuse", "admit"]

Init = TypeVar("Init", bound=Callable[..., None])


def with_options_of(shared: Callable[..., None]) -> Callable[[Init], Init]:
    """Makes an `__init__` show the options that it passes on, instead of `**options`.

    Args:
        shared: The function that the options are passed on to; it takes all of them as keywords.

    Returns:
        A decorator.
    """

    def show(init: Init) -> Init:
        signature = inspect.signature(init)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [each for each in inspect.signature(shared).parameters.values() if each.kind is each.KEYWORD_ONLY]
        shown: Any = init
        shown.__signature__ = signature.replace(parameters=[*own, *options])
        # Frameworks that inspect types find those of the options, not a name that only type checkers know.
        del shown.__annotations__["options"]
        hints = get_type_hints(shared)
        shown.__annotations__.update({each.name: hints[each.name] for each in options})
        return init

    return show
