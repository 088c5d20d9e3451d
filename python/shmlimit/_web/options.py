"""The options that all integrations take alike."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from shmlimit._by_arguments import Capacities, Costs
from shmlimit._web.keys import KeyFinder, Request

if TYPE_CHECKING:
    from datetime import timedelta

    from typing_extensions import TypedDict

    class LimitOptions(TypedDict, Generic[Request], total=False):
        """What an integration does beside asking a set of limits.

        Callables are given the request as the framework has it: the scope of ASGI, the environment of WSGI. They may be
        asynchronous where the application is; elsewhere that is a `TypeError`.
        """

        key: KeyFinder[Request] | None
        """Whose limits a request is held against, for keyed sets.

        `Header`, `ClientAddress`, or a callable of the request. A request of which it finds none is answered 400.
        """

        costs: Costs | Callable[[Request], Costs | Awaitable[Costs | None] | None] | None
        """What a request takes, by limit; or a callable of the request that says so."""

        timeout: float | timedelta | None
        """How long a request may wait in the queue in place of being refused at once.

        A worker of WSGI waits with it.
        """

        exempt: Callable[[Request], bool | Awaitable[bool]] | None
        """Says of a request whether it is not limited, as health checks are not."""

        on_error: OnError
        """What to do when the limits cannot be asked.

        `"refuse"` answers 500, `"admit"` passes the request on as though it were not limited.
        """

        advertise: Advertise
        """Which responses say how the limits stand: `"always"`, `"when_refused"` or `"never"`."""

        fails_with: Callable[[int], bool | Awaitable[bool]]
        """Which statuses say that the work failed, for adaptive concurrency."""

        quota_units: Mapping[str, str] | None
        """By rate limit or budget, the unit in which clients know it, such as `"content-bytes"`.

        Others are not in the header fields.
        """

        policy_prefix: str
        """What stands before the names of limits wherever clients read them."""

        tier: str | Callable[[Request], str | Awaitable[str | None] | None] | None
        """The tier that the key of a request is put into, and stays in; or a callable of the request that says so.

        Unless given, or where that is None, it stays in the one that it is in.
        """

        overrides: Capacities | Callable[[Request], Capacities | Awaitable[Capacities | None] | None] | None
        """Which capacities the key of a request has of its own, as `limits` for `Limits.acquire`.

        Or a callable of the request that says so. Of those that are not named, it keeps what it has.
        """


Advertise: TypeAlias = Literal["always", "when_refused", "never"]
OnError: TypeAlias = Literal["refuse", "admit"]

Init = TypeVar("Init", bound=Callable[..., None])


def with_options_of(shared: Callable[..., None]) -> Callable[[Init], Init]:
    """Has an `__init__` show the options that it passes on, where it would show `**options`.

    Args:
        shared: What the options are passed on to, with all of them as keywords.

    Returns:
        A decorator.
    """

    def show(init: Init) -> Init:
        signature = inspect.signature(init)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [each for each in inspect.signature(shared).parameters.values() if each.kind is each.KEYWORD_ONLY]
        shown: Any = init
        shown.__signature__ = signature.replace(parameters=[*own, *options])
        # Frameworks that look at types find those of the options, and no name that type checkers alone know.
        del shown.__annotations__["options"]
        hints = get_type_hints(shared)
        shown.__annotations__.update({each.name: hints[each.name] for each in options})
        return init

    return show
