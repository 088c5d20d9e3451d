"""Functions that hold a permit for as long as they run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from shmlimit._acquisition import Acquisition

P = ParamSpec("P")
R = TypeVar("R")


def wrap(
    function: Callable[P, R],
    acquire: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]],
    acquire_async: Callable[[tuple[Any, ...], dict[str, Any]], Acquisition],
) -> Callable[P, R]:
    """Makes a function, coroutine function, generator or asynchronous generator hold a permit while it runs.

    Args:
        function: The function.
        acquire: Takes a permit for a call with such arguments.
        acquire_async: The same for a task.

    Returns:
        The function that does so.
    """
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
