"""Celery: tasks that run under limits shared by all worker processes on the host.

```python
jobs = shmlimit.open("/dev/shm/jobs.limits", config=shmlimit.LimitSet("jobs", [
    shmlimit.Concurrency("running", 4), shmlimit.Calls("started", 100, "60s"),
]))["jobs"]

@app.task(base=limited(jobs, timeout=5.0))
def resize(picture): ...
```

The permit is taken in the worker process that runs the task, right before the task's body, and given back when the body
ends, however it ends. If the process is killed, the permit comes back as soon as another task needs it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

from celery import Task  # type: ignore[import-untyped, import-not-found, unused-ignore]
from celery.exceptions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    Ignore,
    Reject,
    Retry,
)

from shmlimit import Permit, Refused, Removed, SetHandle
from shmlimit._by_arguments import ByArguments, Costs, Key, Overrides, Taken, check_timeout
from shmlimit._work_that_goes_on import release_when_done

__all__ = ["LimitedTask", "limited"]

# A header of a task that was sent back. Celery's own count of retries is separate.
_HEADER = "shmlimit"

# Refusals that stand until another task or request ends. If one names a time, because a place is free but others are
# ahead of this task, that is the earliest time possible.
_WANT_OF_PLACE = frozenset({"concurrency", "queue_full", "holds_full", "table_full"})

# After this many doublings the range of delays ends at 8 times the first, and stays there.
_MAX_DOUBLINGS = 3

# The first delay for tasks that take hardly any time: sending one back costs about as much.
_SHORTEST_FIRST = 0.02

# How much the latest run counts towards the time that tasks typically run.
_WEIGHT_OF_LATEST = 0.2

# Tasks that time alone will admit come back spread over this part of their wait. Of many tasks that come back after the
# same wait, few can be admitted, and spreading the others further each time would leave capacity unused.
_SPREAD = 0.1
_SHORTEST_SPREAD = 0.01
_LONGEST_SPREAD = 60.0


@dataclass(frozen=True)
class _SentBack:
    """How often a task was sent back, as its header says.

    Attributes:
        refusals: How often in total.
        in_a_row: How often in a row, up to now, because there was no place.
    """

    refusals: int = 0
    in_a_row: int = 0

    def again(
        self, refused: Refused | Removed, places: Collection[str], retry_delay: float, typical_run: float
    ) -> tuple[float, _SentBack]:
        """Decides when to try again after one more refusal.

        Args:
            refused: The refusal.
            places: The names of the concurrency limits, whose places are taken.
            retry_delay: The longest first delay if no time is known.
            typical_run: How long such tasks take, as far as this process knows.

        Returns:
            The countdown in seconds, and what the header says from now on.
        """
        wants_a_place = isinstance(refused, Refused) and _wants_a_place(refused, places)
        retry_after = refused.retry_after if isinstance(refused, Refused) else None
        if wants_a_place or retry_after is None:
            # Tasks refused together must not return together; and since nobody knows when they will be admitted, some
            # of them should try soon.
            in_a_row = self.in_a_row if wants_a_place else 0
            # Places come back as tasks end: a task that waits much longer than one of these takes leaves them unused.
            first = min(retry_delay, max(typical_run, _SHORTEST_FIRST)) if wants_a_place else retry_delay
            longest = first * 2 ** min(in_a_row, _MAX_DOUBLINGS)
            after = _SentBack(self.refusals + 1, in_a_row + 1 if wants_a_place else 0)
            return random.uniform(first / 10, longest), after
        spread = min(max(_SPREAD * retry_after, _SHORTEST_SPREAD), _LONGEST_SPREAD)
        # Rounded up: a task that came back earlier would be refused again.
        countdown = math.ceil((retry_after + random.uniform(0, spread)) * 1000) / 1000
        return countdown, _SentBack(self.refusals + 1)


def _wants_a_place(refused: Refused, places: Collection[str]) -> bool:
    # If hosts share the places, another host may have what this one lacks.
    return refused.reason in _WANT_OF_PLACE or (refused.reason == "lease" and refused.binding in places)


@dataclass
class _Terms:
    """What a class of tasks takes, and what happens to a task that is refused."""

    limits: SetHandle
    takes: ByArguments
    timeout: float | timedelta | None
    when_refused: Literal["retry", "fail"]
    max_refusals: int | None
    retry_delay: float
    # A moving average of the runs in this process; infinite before the first.
    typical_run: float = math.inf

    def ran_for(self, seconds: float) -> None:
        """Notes how long a task ran."""
        if math.isinf(self.typical_run):
            self.typical_run = seconds
        else:
            self.typical_run += _WEIGHT_OF_LATEST * (seconds - self.typical_run)

    def acquire(self, taken: Taken) -> Permit:
        """Takes the permit; if the limits' segment was removed, from its successor."""
        costs, key, tier, overrides = taken
        limits = self.limits
        try:
            return limits.acquire(costs, key=key, timeout=self.timeout, tier=tier, overrides=overrides)
        except Removed:
            successor = limits.successor()
            if successor is None:
                raise
        self.limits = successor
        return successor.acquire(costs, key=key, timeout=self.timeout, tier=tier, overrides=overrides)


class LimitedTask(Task):  # type: ignore[misc, unused-ignore]
    """A Celery task that holds a permit while it runs; made by [`limited`][shmlimit.celery.limited].

    A task that is called as a plain function, not by `delay` or `apply_async`, takes no permit: as with Celery's other
    options, it is then part of its caller.
    """

    _terms: _Terms

    @property
    def permit(self) -> Permit | None:
        """The permit of the running task, to settle, debit or renew; None if it holds none.

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
            # An eager task has no queue to go back to.
            if self._terms.when_refused == "fail" or self.request.is_eager:
                raise
            self._send_back(refused)
        self.request.shmlimit_permit = permit
        began = time.monotonic()
        try:
            return release_when_done(permit, super().__call__(*args, **kwargs), self)
        except (Ignore, Reject):
            # The task ended as intended, so this must not count as overload for an adaptive limit.
            permit.release()
            raise
        except BaseException as error:
            permit.__exit__(type(error), error)
            raise
        finally:
            self._terms.ran_for(time.monotonic() - began)
            self.request.shmlimit_permit = None

    def _send_back(self, refused: Refused | Removed) -> None:
        """Publish this task again for when it may be admitted, and end this run as a retry."""
        request = self.request
        headers = dict(request.headers or {})
        before = _SentBack(**headers.get(_HEADER, {}))
        terms = self._terms
        countdown, after = before.again(refused, terms.limits._places, terms.retry_delay, terms.typical_run)
        if terms.max_refusals is not None and after.refusals > terms.max_refusals:
            raise refused
        # `retry` would count the refusal as one of the task's own retries.
        again = self.signature_from_request(
            request,
            countdown=countdown,
            retries=request.retries,
            headers={**headers, _HEADER: asdict(after)},
        )
        try:
            again.apply_async()
        except Exception as error:
            raise Reject(error, requeue=False) from error
        raise Retry(exc=refused, when=countdown, sig=again) from refused


def limited(
    limits: SetHandle,
    costs: Costs | Callable[..., Costs | None] | None = None,
    *,
    key: Key | Callable[..., Key | None] | None = None,
    timeout: float | timedelta | None = None,
    when_refused: Literal["retry", "fail"] = "retry",
    max_refusals: int | None = None,
    retry_delay: float = 1.0,
    tier: str | Callable[..., str | None] | None = None,
    overrides: Overrides | Callable[..., Overrides | None] | None = None,
    base: type[Any] = Task,
) -> type[LimitedTask]:
    """Makes a base class for tasks that run under a permit of `limits`.

    A refused task is published again with a `countdown`. It ends in the state `RETRY`, and counts neither as a failure
    nor as one of the task's own `max_retries`. Until it comes back it occupies no worker process, and nothing polls.

    If time alone will admit the task, the countdown is the refusal's `retry_after` plus a random part of up to a tenth
    of it, so that tasks refused together do not return together. If there is no place until another task ends, the
    countdown is random: at first at most as long as such tasks have lately run in this worker process, or `retry_delay`
    if that is shorter, and twice as much with each further refusal in a row for this reason, up to 8 times the first.
    If nobody knows when there will be more, as with a limit that hosts share while nothing of it is leased, the
    countdown is random and never more than `retry_delay`.

    Args:
        limits: The set that each task takes from: `shmlimit.open(...)[name]`, opened before or after the workers are
            forked.
        costs: A mapping of limit names to amounts, or a function that returns one for the task's arguments.
        key: The key whose limits are used, or a function that returns it for the task's arguments.
        timeout: How many seconds a task waits in the queue, within its worker process, before it is refused: `None` for
            as long as it takes, 0 for not at all. The process does nothing else meanwhile, and the wait counts towards
            the task's time limits.
        when_refused: `"retry"` to send the task back, `"fail"` to let it fail with `Refused` or `AcquireTimeout`. Under
            `task_always_eager` it fails.
        max_refusals: How often a task may be sent back before it fails; `None` for no bound.
        retry_delay: The longest countdown, in seconds, if nobody knows when to come back, and the longest first one if
            there is no place.
        tier: The tier to put the key into, as for `SetHandle.acquire`, or a function that returns it for the task's
            arguments.
        overrides: The key's own capacities, as for `SetHandle.acquire`, or a function that returns them for the
            task's arguments.
        base: The task class to build on, if the application has one of its own.

    Returns:
        A class for `@app.task(base=...)`, or to derive task classes from.
    """
    takes = ByArguments(costs, key, tier, overrides)
    takes.refuse_asynchronous()
    check_timeout(timeout)
    terms = _Terms(limits, takes, timeout, when_refused, max_refusals, retry_delay)
    parents = (LimitedTask,) if issubclass(LimitedTask, base) else (LimitedTask, base)
    return type("LimitedTask", parents, {"_terms": terms})
