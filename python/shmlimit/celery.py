"""Celery: tasks that run under limits which all worker processes of the host share.

```python
jobs = shmlimit.open("/dev/shm/jobs.limits", config=shmlimit.LimitSet("jobs", [
    shmlimit.Concurrency("running", 4), shmlimit.Calls("started", 100, "60s"),
]))["jobs"]

@app.task(base=limited(jobs, timeout=5.0))
def resize(picture): ...
```

The permit is taken in the worker process that runs the task, right before the task's body, and given back
when the body ends, however it ends. If the process is killed, the permit comes back as soon as another task needs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from celery import Task  # type: ignore[import-untyped, import-not-found, unused-ignore]
from celery.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    Ignore,
    Reject,
    Retry,
)

from shmlimit import Limits, Permit, Refused, Removed
from shmlimit._by_arguments import ByArguments, Capacities, Costs, Key, Taken

__all__ = ["LimitedTask", "limited"]

# Travels with the message of a task that was sent back, beside Celery's own count of retries.
_REFUSALS_HEADER = "shmlimit_refusals"

# With this many refusals the delay has grown to 64 times the first one, and stays there.
_MAX_DOUBLINGS = 6


@dataclass
class _Terms:
    """What a class of tasks takes, and what becomes of a task that is refused."""

    limits: Limits
    takes: ByArguments
    timeout: float | timedelta | None
    when_refused: Literal["retry", "fail"]
    max_refusals: int | None
    retry_delay: float

    def acquire(self, taken: Taken) -> Permit:
        """The permit, of what took the place of the limits' segment where that was removed."""
        costs, key, tier, overrides = taken
        limits = self.limits
        try:
            return limits.acquire(costs, key=key, timeout=self.timeout, tier=tier, limits=overrides)
        except Removed:
            successor = limits.successor()
            if successor is None:
                raise
        self.limits = successor
        return successor.acquire(costs, key=key, timeout=self.timeout, tier=tier, limits=overrides)

    def countdown(self, refused: Refused | Removed, refusals: int) -> float:
        """Seconds until a refused task is worth another try."""
        retry_after = refused.retry_after if isinstance(refused, Refused) else None
        if retry_after is not None and retry_after > 0:
            # Rounded up, since the task would be refused again if it came back before that instant.
            return math.ceil(retry_after * 1000) / 1000
        # Only another task's end can help, which no one can foretell. Each try comes later than the one
        # before, and at random, so that tasks refused together do not return together.
        longest = self.retry_delay * 2 ** min(refusals - 1, _MAX_DOUBLINGS)
        return random.uniform(longest / 2, longest)


class LimitedTask(Task):  # type: ignore[misc, unused-ignore]
    """A Celery task that holds a permit while it runs; made by [`limited`][shmlimit.celery.limited].

    A task that is called as a plain function, rather than by `delay` or `apply_async`, takes no permit: as
    with Celery's other options, it is then part of its caller.
    """

    _terms: _Terms

    @property
    def permit(self) -> Permit | None:
        """The permit of the task that runs now: to settle, debit or renew. None where none is held.

        In a task declared with `bind=True` it is `self.permit`, elsewhere `celery.current_task.permit`.
        """
        permit: Permit | None = self.request.get("shmlimit_permit")
        return permit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under a permit, or send it back."""
        if self.request.called_directly or self.permit is not None:
            return super().__call__(*args, **kwargs)
        taken = self._terms.takes.of(args, kwargs)
        try:
            permit = self._terms.acquire(taken)
        except (Refused, Removed) as refused:
            # A task that runs eagerly has no queue to go back to.
            if self._terms.when_refused == "fail" or self.request.is_eager:
                raise
            self._send_back(refused)
        with permit:
            self.request.shmlimit_permit = permit
            try:
                return super().__call__(*args, **kwargs)
            except (Ignore, Reject):
                # The task ended as it meant to, so this is no sign of overload to an adaptive limit.
                permit.release()
                raise
            finally:
                self.request.shmlimit_permit = None

    def _send_back(self, refused: Refused | Removed) -> None:
        """Publish this task again for when it may be admitted; this run of it ends as one to be retried."""
        request = self.request
        headers = dict(request.headers or {})
        refusals = int(headers.get(_REFUSALS_HEADER, 0)) + 1
        if self._terms.max_refusals is not None and refusals > self._terms.max_refusals:
            raise refused
        countdown = self._terms.countdown(refused, refusals)
        # Not `retry`, which would count the refusal as one of the task's own retries.
        again = self.signature_from_request(
            request,
            countdown=countdown,
            retries=request.retries,
            headers={**headers, _REFUSALS_HEADER: refusals},
        )
        try:
            again.apply_async()
        except Exception as error:
            raise Reject(error, requeue=False) from error
        raise Retry(exc=refused, when=countdown, sig=again) from refused


def limited(
    limits: Limits,
    costs: Costs | Callable[..., Costs | None] | None = None,
    *,
    key: Key | Callable[..., Key | None] | None = None,
    timeout: float | timedelta | None = None,
    when_refused: Literal["retry", "fail"] = "retry",
    max_refusals: int | None = None,
    retry_delay: float = 1.0,
    tier: str | Callable[..., str | None] | None = None,
    overrides: Capacities | Callable[..., Capacities | None] | None = None,
    base: type[Any] = Task,
) -> type[LimitedTask]:
    """A base class for tasks that run under a permit of `limits`.

    A task that is refused is published again with `countdown` set to the refusal's `retry_after`, ends in the
    state `RETRY`, and counts neither as a failure nor as one of the task's own `max_retries`. While it is
    away it takes no worker process; nothing polls. Where no time can be foretold, since what is missing is a
    place that another task holds, the countdown starts at `retry_delay`, doubles with each refusal up to 64
    times that, and is random within the upper half.

    Args:
        limits: What each task takes, from `shmlimit.open(...)[name]`. Opened before the workers are forked or
            after.
        costs: A mapping of limit names to amounts, or a function that is called with the task's arguments and
            answers one.
        key: Who is limited, or a function that is called with the task's arguments and answers that.
        timeout: How long a task waits in the queue within its worker process, in seconds, before it is refused:
            `None` for as long as it takes, 0 not at all. The process does nothing else meanwhile, and the wait
            counts towards the task's time limits.
        when_refused: `"retry"` to send the task back, `"fail"` to let it fail with `Refused` or
            `AcquireTimeout`. Under `task_always_eager` it fails.
        max_refusals: How often a task may be sent back before it fails; `None` for ever.
        retry_delay: The first countdown where `retry_after` is not known, in seconds.
        tier: The tier that the key is put into, as for `Limits.acquire`, or a function that is called with the task's
            arguments and answers that.
        overrides: Which capacities the key has of its own, as `limits` for `Limits.acquire`, or a function that is
            called with the task's arguments and answers them.
        base: The class of tasks to build on, where the application has one of its own.

    Returns:
        A class for `@app.task(base=...)`, or to derive task classes from.
    """
    takes = ByArguments(costs, key, tier, overrides)
    takes.refuse_asynchronous()
    terms = _Terms(limits, takes, timeout, when_refused, max_refusals, retry_delay)
    parents = (LimitedTask,) if issubclass(LimitedTask, base) else (LimitedTask, base)
    return type("LimitedTask", parents, {"_terms": terms})
