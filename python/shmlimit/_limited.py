"""Functions that hold a permit for as long as they run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from shmlimit._work_that_goes_on import release_when_done, under_permit

if TYPE_CHECKING:
    from shmlimit import _native

P = ParamSpec("P")
R = TypeVar("R")


def runs_in_a_task(function: object) -> bool:
    """Whether a function is asynchronous, so that it can await other asynchronous functions.

    Args:
        function: The function.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return runs_in_a_task(function.__func__)
    return _is_any(function, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def wrap(
    function: Callable[P, R],
    acquire: Callable[[tuple[Any, ...], dict[str, Any]], _native.Permit],
    acquire_async: Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[_native.Permit]],
) -> Callable[P, R]:
    """Makes a function, coroutine function, generator or asynchronous generator hold a permit while it runs.

    Args:
        function: The function.
        acquire: Takes a permit for a call with these arguments.
        acquire_async: The same, for a task.

    Returns:
        The wrapped function.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return cast("Callable[P, R]", type(function)(wrap(function.__func__, acquire, acquire_async)))
    any_function = cast("Callable[..., Any]", function)
    wrapper: Callable[..., Any]
    if _is_any(function, inspect.isasyncgenfunction):
        wrapper = under_permit(any_function, acquire_async)

    elif _is_any(function, inspect.iscoroutinefunction):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            permit = await acquire_async(args, kwargs)
            try:
                return release_when_done(permit, await any_function(*args, **kwargs), function)
            except BaseException as error:
                permit.__exit__(type(error), error)
                raise

    elif _is_any(function, inspect.isgeneratorfunction):

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with acquire(args, kwargs):
                return (yield from any_function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            permit = acquire(args, kwargs)
            try:
                return release_when_done(permit, any_function(*args, **kwargs), function)
            except BaseException as error:
                permit.__exit__(type(error), error)
                raise

    return cast("Callable[P, R]", wrapper)


def _is_any(function: object, *tests: Callable[[object], bool]) -> bool:
    """Whether a test holds for a function, or for an object's `__call__`."""
    forms = [function] if inspect.isclass(function) else [function, getattr(function, "__call__", None)]  # noqa: B004
    return any(test(form) for test in tests for form in forms)
