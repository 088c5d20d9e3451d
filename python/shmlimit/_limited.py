"""Functions that take a permit for as long as they run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    from shmlimit import _native
    from shmlimit._acquisition import Acquisition
    from shmlimit._declaration import Amount

P = ParamSpec("P")
R = TypeVar("R")


class Limited:
    """What makes functions limited ones."""

    __slots__ = ()

    if TYPE_CHECKING:

        def acquire(
            self,
            costs: Mapping[str, Amount] | None = None,
            *,
            key: str | bytes | int | None = None,
            timeout: float | timedelta | None = None,
        ) -> _native.Permit: ...

        def acquire_async(
            self,
            costs: Mapping[str, Amount] | None = None,
            *,
            key: str | bytes | int | None = None,
            timeout: float | timedelta | None = None,
        ) -> Acquisition: ...

    @overload
    def limited(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def limited(
        self,
        function: None = None,
        /,
        *,
        costs: Mapping[str, Amount] | Callable[..., Mapping[str, Amount]] | None = None,
        key: str | bytes | int | Callable[..., str | bytes | int] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def limited(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        costs: Mapping[str, Amount] | Callable[..., Mapping[str, Amount]] | None = None,
        key: str | bytes | int | Callable[..., str | bytes | int] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Makes a function take a permit before it runs, waiting for it, and give it back when it ends.

        A generator holds its permit from its first step to its end. Works for functions, coroutine functions,
        generators and asynchronous generators.

        Args:
            function: The function, where this is used without arguments.
            costs: What to take of each limit, or a function of the call's arguments that says it.
            key: Who is limited, or a function of the call's arguments that says it.
            timeout: Seconds to wait at most; as long as it takes unless given.

        Returns:
            The limited function, or what makes a function one. Called, it raises what `acquire` raises.
        """

        def request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            return {
                "costs": costs(*args, **kwargs) if callable(costs) else costs,
                "key": key(*args, **kwargs) if callable(key) else key,
                "timeout": timeout,
            }

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return _wrap(
                function,
                lambda args, kwargs: self.acquire(**request(args, kwargs)),
                lambda args, kwargs: self.acquire_async(**request(args, kwargs)),
            )

        return decorate if function is None else decorate(function)


def _wrap(
    function: Callable[P, R],
    acquire: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]],
    acquire_async: Callable[[tuple[Any, ...], dict[str, Any]], Acquisition],
) -> Callable[P, R]:
    any_function = cast("Callable[..., Any]", function)
    wrapper: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Any, Any]:
            async with acquire_async(args, kwargs):
                inner = any_function(*args, **kwargs)
                try:
                    sent = None
                    while True:
                        try:
                            item = await inner.asend(sent)
                        except StopAsyncIteration:
                            return
                        sent = yield item
                finally:
                    await inner.aclose()

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with acquire_async(args, kwargs):
                return await any_function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with acquire(args, kwargs):
                return (yield from any_function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with acquire(args, kwargs):
                return any_function(*args, **kwargs)

    return cast("Callable[P, R]", wrapper)
