"""Callables that programs pass in: asynchronous ones are awaited in tasks, and refused elsewhere."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

Value = TypeVar("Value")


def refuse_asynchronous(**functions: object) -> None:
    """Rejects asynchronous functions, for callers that cannot await their results.

    Args:
        **functions: The functions, by the names that the program knows them by. Anything not callable is skipped.

    Raises:
        TypeError: A function is asynchronous. Its unawaited result would always be truthy.
    """
    for name, function in functions.items():
        forms = (function, getattr(function, "__call__", None))  # noqa: B004
        if any(inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form) for form in forms):
            raise TypeError(f"{name} is asynchronous, and nothing awaits it here: give a function that answers at once")


def answered(name: str, answer: Value) -> Value:
    """Checks the result of a plain function.

    Args:
        name: The name that the program knows the function by.
        answer: What it returned.

    Returns:
        The result.

    Raises:
        TypeError: The result would have to be awaited or iterated over first.
    """
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            # The error below reports it; without this, Python would also warn that it was never awaited.
            answer.close()
        raise TypeError(
            f"{name} gave {type(answer).__name__!r}, and not an answer: give a function that answers at once"
        )
    return answer


async def awaited(name: str, answer: Any) -> Any:
    """Awaits and checks the result of a function that may be asynchronous.

    Args:
        name: The name that the program knows the function by.
        answer: What it returned; awaited if it is awaitable.

    Returns:
        The result.

    Raises:
        TypeError: The result would have to be iterated over first.
    """
    return answered(name, await answer if inspect.isawaitable(answer) else answer)
