"""Sets of limits as their users hold them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shmlimit import _native
from shmlimit._acquisition import Acquisition, admitted
from shmlimit._limited import Limited

if TYPE_CHECKING:
    from shmlimit._declaration import Amount


class Limits(Limited, _native.Limits):
    """A set of limits that are taken together, all or nothing, by all processes that have the segment open.

    A handle may be used by any number of threads, event loops and forked children. Pickled, it is the path of the
    segment and the name of the set, and opens that where it arrives.
    """

    __slots__ = ()

    def acquire(
        self,
        costs: Mapping[str, Amount] | None = None,
        *,
        key: str | bytes | int | None = None,
        timeout: float | timedelta | None = None,
    ) -> _native.Permit:
        """Takes everything that the request names, waiting in line for it, over all threads and processes.

        Args:
            costs: What to take of each limit; as for `try_acquire`.
            key: Who is limited, where the set is keyed; each key has a line of its own.
            timeout: Seconds to wait at most; as long as it takes unless given.

        Returns:
            The permit.

        Raises:
            AcquireTimeout: Time was up. Its `refusal` says what bound at the end.
            Refused: The line or the table of keys is full.
            RequestError: No waiting could help.
        """
        return admitted(self._acquire(costs, key, timeout))

    def acquire_async(
        self,
        costs: Mapping[str, Amount] | None = None,
        *,
        key: str | bytes | int | None = None,
        timeout: float | timedelta | None = None,
    ) -> Acquisition:
        """As `acquire`, for a task of asyncio (also on uvloop) or trio: in the same line as everybody else.

        Args:
            costs: What to take of each limit; as for `try_acquire`.
            key: Who is limited, where the set is keyed.
            timeout: Seconds to wait at most, from when it is awaited or entered on.

        Returns:
            What can be awaited, for the permit, or entered by `async with`, which releases it at the end.

        Raises:
            AcquireTimeout: When awaited, as `acquire`.
            Refused: When awaited, as `acquire`.
            RequestError: When awaited, as `acquire`.
        """
        return Acquisition(lambda: self._begin(costs, key, timeout))

    def __reduce__(self) -> tuple[Any, ...]:
        from shmlimit._segment import reopen_limits

        return reopen_limits, (self.path, self.name, self.strict)
