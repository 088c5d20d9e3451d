"""Permits for functions whose work is not done when they return."""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncContextDecorator, ContextDecorator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmlimit import _native


def release_when_done(permit: _native.Permit, result: Any, function: object) -> Any:
    """Releases a function's permit when its work is done: at once, unless its result shows that the work goes on.

    Args:
        permit: The permit that the function runs under.
        result: What it returned.
        function: The function, for the message.

    Returns:
        What to give the caller: the result, or a generator that wraps it and holds the permit.

    Raises:
        TypeError: The work goes on, and nothing here would know when it ends. The permit is still held.
    """
    if inspect.isgenerator(result) or isinstance(result, (map, filter)):
        return _held(permit, result)
    if inspect.isasyncgen(result):
        return _held_async(permit, result)
    if callable(getattr(result, "add_done_callback", None)):
        # A task or a future of any library. If it never calls back, the permit is released when it is collected.
        result.add_done_callback(lambda done: _release_when(permit, done))
        return result
    advice = _why_not_done(result)
    if advice is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"{function!r} returned {type(result).__name__!r}, {advice}")
    permit.release()
    return result


def _held(permit: _native.Permit, parts: Iterable[Any]) -> Generator[Any, Any, Any]:
    with permit:
        return (yield from parts)


def _held_async(permit: _native.Permit, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    async def taken(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _native.Permit:
        return permit

    return under_permit(lambda: generator, taken)()


def under_permit(
    function: Callable[..., AsyncGenerator[Any, Any]],
    acquire: Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[_native.Permit]],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Makes an asynchronous generator hold a permit from its first step to its end.

    Values sent and exceptions thrown reach it, as with `yield from`, which Python has only for plain generators.

    Args:
        function: Makes the generator.
        acquire: Takes a permit for a call with these arguments.

    Returns:
        The wrapped asynchronous generator function.
    """

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with await acquire(args, kwargs):
            inner = function(*args, **kwargs)
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

    return wrapper


def _release_when(permit: _native.Permit, done: Any) -> None:
    failed = True
    try:
        # A future of any library, so asking it may raise.
        failed = _has_failed(done)
    finally:
        permit.release(failed)


def _has_failed(done: Any) -> bool:
    if done.cancelled():
        return False
    if asyncio.isfuture(done):
        # `exception()` would mark the error as retrieved, and asyncio would not report it if nobody else looks.
        return getattr(done, "_exception", None) is not None
    return done.exception() is not None


def _why_not_done(result: Any) -> str | None:
    """Why a function's work goes on after its return, and what to limit instead; None if it does not go on."""
    if inspect.isawaitable(result):
        return "which is yet to be awaited: limit the coroutine function that makes it, or await it inside"
    if isinstance(result, (ContextDecorator, AsyncContextDecorator)) and isinstance(
        result, (AbstractContextManager, AbstractAsyncContextManager)
    ):
        return "which is yet to be entered: put @limited below @contextmanager, on the generator function"
    is_stream = isinstance(result, AsyncIterator) or (
        isinstance(result, Iterator) and hasattr(result, "__exit__") and not isinstance(result, io.IOBase)
    )
    has_a_body_to_come = (
        hasattr(result, "body_iterator")  # Starlette
        or getattr(result, "streaming", None) is True  # Django
        or getattr(result, "is_streamed", None) is True  # Werkzeug
        or (hasattr(result, "is_stream_consumed") and getattr(result, "is_closed", None) is False)  # httpx
    )
    if is_stream or has_a_body_to_come:
        return (
            "whose parts are produced after the function returns: limit the generator function that makes or reads them"
        )
    return None
