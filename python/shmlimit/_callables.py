"""Callables that programs hand over: asynchronous ones are awaited where something can wait, and refused elsewhere."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

Value = TypeVar("Value")


def refuse_asynchronous(**functions: object) -> None:
    """Sees that functions are plain ones, for what cannot await what they give.

    Args:
        **functions: Them, by the names that the program knows them by. What is not callable is passed over.

    Raises:
        TypeError: One is asynchronous. What it gives would be true, whatever it comes to.
    """
    for name, function in functions.items():
        forms = (function, getattr(function, "__call__", None))  # noqa: B004
        if any(inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form) for form in forms):
            raise TypeError(f"{name} is asynchronous, and nothing awaits it here: give a function that answers at once")


def answered(name: str, answer: Value) -> Value:
    """The answer of a plain function.

    Args:
        name: The name that the program knows the function by.
        answer: What it gave.

    Returns:
        The answer.

    Raises:
        TypeError: It is yet to be awaited or iterated over, and so says nothing.
    """
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            # It will not be awaited, and has just been reported.
            answer.close()
        raise TypeError(
            f"{name} gave {type(answer).__name__!r}, and not an answer: give a function that answers at once"
        )
    return answer


async def awaited(name: str, answer: Any) -> Any:
    """The answer of a function that may be asynchronous.

    Args:
        name: The name that the program knows the function by.
        answer: What it gave, which is awaited if it can be.

    Returns:
        The answer.

    Raises:
        TypeError: It is yet to be iterated over, and so says nothing.
    """
    return answered(name, await answer if inspect.isawaitable(answer) else answer)
