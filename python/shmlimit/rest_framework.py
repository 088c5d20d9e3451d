"""Throttles of Django REST Framework that all workers share, at once and exactly.

Change where the classes come from and say where to count, and leave the rates as they are:

```python
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_CLASSES": ["shmlimit.rest_framework.UserRateThrottle"],
    "DEFAULT_THROTTLE_RATES": {"user": "1000/day"},
}
SHMLIMIT_THROTTLES = {"directory": "/dev/shm/mysite.throttles"}
```

A throttle of your own that derives from `SimpleRateThrottle` derives from the one here instead. DRF's own read the
cache, look, and write it back: requests that come at the same time do not see each other. These take in one step.
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
    # Views import the throttles that the settings name: at that time there are no views.
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

# Requests under one key that are kept apart by time; the option `entries` says otherwise.
_ENTRIES = 32


class SimpleRateThrottle(throttling.SimpleRateThrottle):
    """As DRF's, with `scope`, `rate`, `THROTTLE_RATES` and `get_cache_key` as there.

    It lets so many requests through in any stretch of the period; one that is refused is not counted.

    Where more than `entries` requests of a key fall into one period, those closest to each other leave it together:
    a request may then be refused for up to a part in `entries` of the period longer, and is never let through earlier.

    `SHMLIMIT_THROTTLES` in Django's settings has `directory`, where the files are kept, and may have `max_keys`,
    `when_full` and `entries`, as `shmlimit.limits_storage` has them.
    """

    num_requests: int | None
    duration: int | None
    _refusal: Checked | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Takes the request's place in its period, if there is one."""
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
            # Its file was removed, and is made anew.
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
        """Called when the request was let through, and has been counted."""
        return True

    def wait(self) -> float | None:
        """After how many seconds the request would be admitted; 1 where there was no room to count it."""
        if self._refusal is None:
            return None
        retry_after = self._refusal.retry_after
        return 1.0 if retry_after is None else retry_after


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):
    """As DRF's: limits those who are not logged in, by their address."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):
    """As DRF's: limits those who are logged in by their id, and others by their address."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):
    """As DRF's: limits views by their `throttle_scope`."""


@lru_cache(maxsize=1)
def _directory() -> tuple[WindowDirectory, int]:
    options: dict[str, Any] = dict(getattr(settings, "SHMLIMIT_THROTTLES", {}))
    try:
        path = options.pop("directory")
    except KeyError:
        raise ImproperlyConfigured('set SHMLIMIT_THROTTLES = {"directory": "/dev/shm/mysite.throttles"}') from None
    entries = int(options.pop("entries", _ENTRIES))
    return WindowDirectory(path, **options), entries
