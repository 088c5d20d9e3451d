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

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling

from shmlimit import Calls, Checked, Limits, Removed
from shmlimit._windows import WindowDirectory

if TYPE_CHECKING:
    # Only for types: DRF's views import the throttles that the settings name, so this would be circular.
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

# The default of `entries`: how many requests of one key are told apart by time.
_ENTRIES = 32


class SimpleRateThrottle(throttling.SimpleRateThrottle):
    """Replaces DRF's class of the same name, with its `scope`, `rate`, `THROTTLE_RATES` and `get_cache_key`.

    It lets the rate's number of requests through in any stretch as long as the period; refused requests do not count.

    If more than `entries` requests of a key fall into one period, those closest together leave it together: a request
    may then be refused for longer, by up to the period divided by `entries`, but is never let through too early.

    `SHMLIMIT_THROTTLES` in Django's settings has `directory`, where the files are kept, and optionally `max_keys`,
    `when_full` and `entries`, as in `shmlimit.limits_storage`.
    """

    num_requests: int | None
    duration: int | None
    _refusal: Checked | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Counts the request if there is room for it in its period; returns whether there was."""
        self._refusal = None
        if self.num_requests is None or self.duration is None:
            return True
        key = self.get_cache_key(request, view)
        if key is None:
            return True
        if self.num_requests == 0:
            return self.throttle_failure()
        directory, _ = _directory()
        try:
            checked = self._limits().check(key=key)
        except Removed:
            # The file was removed, and is created anew.
            directory.forget()
            checked = self._limits().check(key=key)
        if checked:
            return self.throttle_success()
        self._refusal = checked
        return self.throttle_failure()

    def _limits(self) -> Limits:
        directory, entries = _directory()
        count, duration = self.num_requests or 1, self.duration or 1
        entries = min(entries, count)
        return directory.limits(
            f"throttle.{count}-per-{duration}s.{entries}-entries",
            2 + 4 * entries,
            lambda: [Calls("requests", count, duration, algorithm="sliding_window", entries=entries)],
        )

    def throttle_success(self) -> bool:
        """Called when the request was let through. It is already counted."""
        return True

    def wait(self) -> float | None:
        """Seconds until the request would be admitted; 1 if there was no room to count it."""
        if self._refusal is None:
            return None
        retry_after = self._refusal.retry_after
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
