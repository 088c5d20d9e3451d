"""Executors of `concurrent.futures` whose calls run under limits that all processes of the host share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from shmlimit import Limits, Permit
from shmlimit._by_arguments import ByArguments, Capacities, Costs, Key, Taken

__all__ = ["LimitedExecutor", "current_permit"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_permit: ContextVar[Permit] = ContextVar("shmlimit_permit")


def current_permit() -> Permit | None:
    """The permit under which a call of a [`LimitedExecutor`][shmlimit.futures.LimitedExecutor] runs now.

    It is there to be settled, debited or renewed by the function that runs; the executor releases it. None
    outside of such a call.
    """
    return _permit.get(None)


class LimitedExecutor(Executor):
    """An executor, wrapped: each call that is submitted runs under a permit.

    The permit is taken by the worker, right before the call, so that a worker that is killed gives it back,
    and calls that wait in the executor's own queue hold nothing. A worker waits in the queue for the permit and
    does nothing else meanwhile: give the pool more workers than the limits have places if other work goes
    through it too.

    ```python
    with LimitedExecutor(ProcessPoolExecutor(8), limits, timeout=30.0) as executor:
        answers = list(executor.map(fetch, addresses))
    ```

    Args:
        executor: A `ThreadPoolExecutor`, a `ProcessPoolExecutor`, or any other whose workers run on this
            host.
        limits: What each call takes.
        costs: A mapping of limit names to amounts, or a function that is called with the call's arguments,
            where it is submitted, and answers one.
        key: Who is limited, or a function that is called in the same way and answers that.
        timeout: How long a worker waits in the queue, in seconds; `None` for as long as it takes. After that the
            future ends with `AcquireTimeout`, and the function is not called.
        tier: The tier that the key is put into, as for `Limits.acquire`, or a function that is called in the same way
            and answers that.
        overrides: Which capacities the key has of its own, as `limits` for `Limits.acquire`, or a function that is
            called in the same way and answers them.
    """

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        costs: Costs | Callable[..., Costs | None] | None = None,
        *,
        key: Key | Callable[..., Key | None] | None = None,
        timeout: float | timedelta | None = None,
        tier: str | Callable[..., str | None] | None = None,
        overrides: Capacities | Callable[..., Capacities | None] | None = None,
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._takes = ByArguments(costs, key, tier, overrides)
        self._takes.refuse_asynchronous()
        self._timeout = timeout

    def submit(
        self,
        function: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Have `function` called with these arguments, under a permit."""
        # Answered here and not in the worker, since functions such as lambdas do not travel to other
        # processes.
        taken = self._takes.of(args, kwargs)
        return self._executor.submit(_call_under_permit, self._limits, taken, self._timeout, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the wrapped executor down."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def _call_under_permit(
    limits: Limits,
    taken: Taken,
    timeout: float | timedelta | None,
    function: Callable[..., _Result],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Result:
    costs, key, tier, overrides = taken
    with limits.acquire(costs, key=key, timeout=timeout, tier=tier, limits=overrides) as permit:
        token = _permit.set(permit)
        try:
            return function(*args, **kwargs)
        finally:
            _permit.reset(token)
