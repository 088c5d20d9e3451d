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
    if isinstance(function, (staticmethod, classmethod)):
        return cast("Callable[P, R]", type(function)(wrap(function.__func__, acquire, acquire_async)))
    any_function = cast("Callable[..., Any]", function)
    # An object that is called runs its method for that.
    forms = [function] if inspect.isclass(function) else [function, getattr(function, "__call__", None)]  # noqa: B004
    wrapper: Callable[..., Any]
    if any(map(inspect.isasyncgenfunction, forms)):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Any, Any]:
            async with acquire_async(args, kwargs):
                inner = any_function(*args, **kwargs)
                try:
                    step = inner.asend(None)
                    while True:
                        try:
                            item = await step
                        except StopAsyncIteration:
                            return
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = inner.athrow(error)
                        else:
                            step = inner.asend(sent)
                finally:
                    await inner.aclose()

    elif any(map(inspect.iscoroutinefunction, forms)):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with acquire_async(args, kwargs):
                return await any_function(*args, **kwargs)

    elif any(map(inspect.isgeneratorfunction, forms)):

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with acquire(args, kwargs):
                return (yield from any_function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with acquire(args, kwargs):
                result = any_function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    # It would run when the permit is long gone.
                    result.close()
                    raise TypeError(f"{function!r} gives a coroutine: limit the coroutine function that makes it")
                return result

    return cast("Callable[P, R]", wrapper)
