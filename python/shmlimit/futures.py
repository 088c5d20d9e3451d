"""`concurrent.futures` executors whose calls run under limits shared by all processes on the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast

from shmlimit import Permit, SetHandle
from shmlimit._by_arguments import ByArguments, Costs, Key, Overrides, Taken, check_timeout
from shmlimit._work_that_goes_on import release_when_done

__all__ = ["LimitedExecutor", "current_permit"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_permit: ContextVar[Permit] = ContextVar("shmlimit_permit")


def current_permit() -> Permit | None:
    """Returns the permit of the running call of a [`LimitedExecutor`][shmlimit.futures.LimitedExecutor].

    The function may settle, debit or renew it; the executor releases it. None outside of such a call.
    """
    return _permit.get(None)


class LimitedExecutor(Executor):
    """Wraps an executor so that each submitted call runs under a permit.

    The worker takes the permit right before the call, so the permit of a killed worker comes back, and calls in the
    executor's own queue hold nothing. A worker that waits for a permit does nothing else: if the pool does other work
    as well, give it more workers than the limits have places. A call that returns a generator or a future holds its
    permit until that has ended, as under `@limits.limited`; a coroutine, which no worker awaits, is a `TypeError`.

    ```python
    with LimitedExecutor(ProcessPoolExecutor(8), limits, timeout=30.0) as executor:
        answers = list(executor.map(fetch, addresses))
    ```

    Args:
        executor: A `ThreadPoolExecutor`, a `ProcessPoolExecutor`, or any other whose workers run on this host.
        limits: The set that each call takes from.
        costs: A mapping of limit names to amounts, or a function that returns one for the call's arguments. It is
            called in the submitting process.
        key: The key whose limits are used, or a function that returns it in the same way.
        timeout: How long a worker waits in the queue, in seconds; `None` for as long as it takes. After that the
            future ends with `AcquireTimeout`, and the function is not called.
        tier: The tier to put the key into, as for `SetHandle.acquire`, or a function that returns it in the same way.
        overrides: The key's own capacities, as for `SetHandle.acquire`, or a function that returns them in the
            same way.
    """

    def __init__(
        self,
        executor: Executor,
        limits: SetHandle,
        costs: Costs | Callable[..., Costs | None] | None = None,
        *,
        key: Key | Callable[..., Key | None] | None = None,
        timeout: float | timedelta | None = None,
        tier: str | Callable[..., str | None] | None = None,
        overrides: Overrides | Callable[..., Overrides | None] | None = None,
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._takes = ByArguments(costs, key, tier, overrides)
        self._takes.refuse_asynchronous()
        check_timeout(timeout)
        self._timeout = timeout

    def submit(
        self,
        function: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Submit a call of `function` with these arguments, to run under a permit."""
        # Computed here and not in the worker, since functions such as lambdas do not pickle.
        taken = self._takes.of(args, kwargs)
        return self._executor.submit(_call_under_permit, self._limits, taken, self._timeout, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the wrapped executor down."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def _call_under_permit(
    limits: SetHandle,
    taken: Taken,
    timeout: float | timedelta | None,
    function: Callable[..., _Result],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Result:
    costs, key, tier, overrides = taken
    permit = limits.acquire(costs, key=key, timeout=timeout, tier=tier, overrides=overrides)
    token = _permit.set(permit)
    try:
        return cast("_Result", release_when_done(permit, function(*args, **kwargs), function))
    except BaseException as error:
        permit.__exit__(type(error), error)
        raise
    finally:
        _permit.reset(token)
