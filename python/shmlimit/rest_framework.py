"""Django REST Framework throttles that all workers share, exactly.

Change where the classes come from, say where to count, and leave the rates as they are:

```python
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_CLASSES": ["shmlimit.rest_framework.UserRateThrottle"],
    "DEFAULT_THROTTLE_RATES": {"user": "1000/day"},
}
SHMLIMIT_THROTTLES = {"directory": "/dev/shm/mysite.throttles"}
```

Derive your own throttles from the `SimpleRateThrottle` here instead of DRF's. DRF's throttles read the cache, decide,
and write it back, so concurrent requests do not see each other. These decide and count in one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling

from shmlimit import Calls, Permit, Refusal, Removed, SetHandle
from shmlimit._web.django_request import context_of
from shmlimit._web.refused_inside import tell_outer
from shmlimit._windows import WindowDirectory
from shmlimit.results import Checked

if TYPE_CHECKING:
    # Only for types: DRF's views import the throttles that the settings name, so this would be circular.
    from rest_framework.request import Request
    from rest_framework.views import APIView

    from shmlimit._by_arguments import Key

Answer = TypeVar("Answer")

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

# The default of `entries`: how many requests of one key are told apart by time.
_ENTRIES = 32

_LIMIT = "requests"

# For DRF, the empty string is a key like any other.
_EMPTY_KEY = "\0"


class _NoCache:
    """Takes the place of Django's cache in DRF's throttles, so that nobody keeps counts there to no effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Something inspects this object.
            raise AttributeError(name)
        raise NotImplementedError(
            f"cache.{name}: the throttles of shmlimit.rest_framework do not keep their counts in Django's cache. Read "
            "`history`, which has an entry for each counted request, and call `super().throttle_success()` to count one"
        )


class SimpleRateThrottle(throttling.SimpleRateThrottle):
    """Replaces DRF's class of the same name, with its `scope`, `rate`, `THROTTLE_RATES` and `get_cache_key`.

    It lets the rate's number of requests through in any stretch of the period's length; refused requests do not count.

    If more than `entries` requests of a key fall into one period, those closest together stop counting together: a
    request may then be refused for longer, by up to the period divided by `entries`, but is never let through too
    early.

    `SHMLIMIT_THROTTLES` in Django's settings has `directory`, where the files are kept, and optionally `max_keys`,
    `when_full` and `entries`, as in `shmlimit.limits_storage`.

    What subclasses of DRF's class do works here, with these differences:

    - A `throttle_success` that does not call the one here leaves the request uncounted. Calling that one later counts
      one more, as a throttle of failed logins does. A `throttle_failure` cannot count the request that it refuses.
    - `history` has as many entries as there are counted requests. Only their number is exact, and changing the list
      changes nothing. `cache` raises `NotImplementedError`, and `timer` only sets `now`.
    - Throttles with the same key and different rates count separately.
    - Keys other than strings, bytes and integers count by their `str`.
    """

    cache = _NoCache()
    now: float
    key: Any
    num_requests: float | None
    duration: float | None
    _answer: Permit | Refusal | Checked | None = None
    _history: list[float] | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Counts the request if there is room for it in its period; returns whether there was."""
        is_allowed = self._allows(request, view)
        if not is_allowed:
            # Limits around the site give back what they took.
            tell_outer(context_of(request))
        return is_allowed

    def _allows(self, request: Request, view: APIView) -> bool:
        self._answer = self._history = None
        if self.num_requests is None or self.duration is None:
            return True
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return True
        self.now = self.timer()
        if self.num_requests <= 0:
            return self.throttle_failure()
        if self.duration <= 0 or math.isinf(self.num_requests):
            return True
        if type(self).throttle_success is not SimpleRateThrottle.throttle_success:
            return self._allow_if_counted()
        self._answer = self._ask(lambda limits, key: limits.check(key=key))
        return self.throttle_success() if self._answer else self.throttle_failure()

    def _allow_if_counted(self) -> bool:
        """Counts the request unless an overridden `throttle_success` leaves that out."""
        self._answer = permit = self._ask(lambda limits, key: limits.try_acquire(key=key))
        if isinstance(permit, Refusal):
            return self.throttle_failure()
        self.history  # As before this request, which `throttle_success` adds.  # noqa: B018
        try:
            return self.throttle_success()
        finally:
            if self._answer is permit:
                permit.settle({_LIMIT: 0})
                self._answer = None
            permit.release()

    def _ask(self, ask: Callable[[SetHandle, Key], Answer]) -> Answer:
        key = self.key if isinstance(self.key, (str, bytes)) else str(self.key)
        directory, _ = _directory()
        try:
            return ask(self._limits(), key or _EMPTY_KEY)
        except Removed:
            # The file was removed, and is recreated.
            directory.forget()
            return ask(self._limits(), key or _EMPTY_KEY)

    def _limits(self) -> SetHandle:
        directory, entries = _directory()
        count, duration = math.ceil(self.num_requests or 1), self.duration or 1
        entries = min(entries, count)
        return directory.limits(
            f"throttle.{count}-per-{duration}s.{entries}",
            2 + 4 * entries,
            lambda: [Calls(_LIMIT, count, duration, algorithm="sliding_window", entries=entries)],
        )

    def throttle_success(self) -> bool:
        """Counts the request: called when there is room for it. Call it later to count one more."""
        if self._answer is None:
            self._ask(lambda limits, key: limits.check(key=key))
        elif isinstance(self._answer, Permit):
            self.history.insert(0, self.now)
            self._answer = None
        return True

    @property
    def history(self) -> list[float]:
        """One time for each counted request, the newest first: exact in number, not in time."""
        if self._history is None:
            self._history = self._times()
        return self._history

    @history.setter
    def history(self, times: list[float]) -> None:
        self._history = times

    def _times(self) -> list[float]:
        verdict = None if self._answer is None else self._answer.verdicts.get(_LIMIT)
        if verdict is None or verdict.capacity is None:
            return []
        used = int(verdict.capacity) - int(verdict.remaining)
        if isinstance(self._answer, Permit):
            used -= 1
        times = [self.now] * used
        if times and not self._answer and verdict.retry_after is not None:
            times[-1] = self.now + verdict.retry_after - (self.duration or 0)
        return times

    def wait(self) -> float | None:
        """Seconds until the request would be admitted; 1 if there was no room to count it, None if never."""
        if self._answer is None:
            return self.duration if (self.num_requests or 0) >= 0 else None
        retry_after = self._answer.retry_after
        return 1.0 if retry_after is None else retry_after


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):
    """Limits users who are not logged in, by their address, like DRF's class."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):
    """Limits users who are logged in by their id, and others by their address, like DRF's class."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):
    """Limits views by their `throttle_scope`, like DRF's class."""


@lru_cache(maxsize=1)
def _directory() -> tuple[WindowDirectory, int]:
    options: dict[str, Any] = dict(getattr(settings, "SHMLIMIT_THROTTLES", {}))
    try:
        path = options.pop("directory")
    except KeyError:
        raise ImproperlyConfigured('set SHMLIMIT_THROTTLES = {"directory": "/dev/shm/mysite.throttles"}') from None
    entries = int(options.pop("entries", _ENTRIES))
    return WindowDirectory(path, **options), entries
