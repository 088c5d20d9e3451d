"""Acquisitions, which hold what was requested, and the interface of the sets that give them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import shmlimit

from ._amounts import check_number, exact_cost
from ._home import decimals
from ._limits import Amount, CallLimit, Limit, RateLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

logger = logging.getLogger(__name__)


class Acquisition:
    """One limit's part in an acquisition.

    Attributes:
        limit: The limit.
        requested: How much was requested.
        successful: Whether it was taken.
        used: How much was used, once `update` was called.
    """

    def __init__(self, limit: Limit, requested: Amount, successful: bool = True) -> None:
        self.limit = limit
        self.requested = requested
        self.successful = successful
        self.used: Amount | None = None
        self._released = False

    def update(self, used: Amount) -> None:
        """Reports how much was used.

        Raises:
            RuntimeError: It was already released.
            TypeError: The amount is not a number.
            ValueError: The amount is negative, or not what the limit allows.
        """
        if self._released:
            raise RuntimeError("Cannot update an already released acquisition")
        number = check_number(used, self.limit.key)
        self.limit.validate_usage(self.requested, number)
        self.used = number

    def release(self) -> None:
        """Closes this part to updates. What was taken comes back when the whole acquisition is released."""
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()

    def _must_be_updated(self) -> bool:
        if isinstance(self.limit, CallLimit):
            return self.requested > 1
        return isinstance(self.limit, RateLimit)


class LimitSetAcquisition:
    """Everything that a request took together.

    As a context manager, sync or async, it releases at the end of the block, however the block ends.

    Attributes:
        limit_set: The set that it was taken from.
        acquisitions: Its parts by limit key.
        successful: Whether it was taken; if not, it holds nothing.
        config: A copy of the set's configuration.
    """

    def __init__(
        self,
        limit_set: BaseLimitSet,
        acquisitions: Mapping[str, Acquisition],
        successful: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.limit_set = limit_set
        self.acquisitions = dict(acquisitions)
        self.successful = successful
        self.config: dict[str, Any] = dict(config or {})
        self._permit: shmlimit.Permit | None = None
        self._updated: set[str] = set()
        self._warned: set[str] = set()
        self._released = False

    def update(self, usage: Mapping[str, Amount]) -> None:
        """Reports how much was used of each limit. The last report before the release counts.

        Args:
            usage: Amounts by limit. Keys that were not acquired are skipped, with one warning each.

        Raises:
            RuntimeError: It was already released.
            TypeError: An amount is not a number.
            ValueError: An amount is negative, or not what its limit allows.
        """
        if self._released:
            raise RuntimeError("Cannot update an already released acquisition")
        for key, used in usage.items():
            part = self.acquisitions.get(key)
            if part is None:
                self._warn_of(key)
                continue
            part.update(used)
            self._updated.add(key)

    def release(self) -> None:
        """Gives back resources and, if the algorithm allows it, the unused part of rates.

        A second call does nothing.

        Raises:
            RuntimeError: A rate limit was not updated. Everything is still held: update it, and release again.
        """
        if self._released:
            return
        missing = self._missing()
        if missing is not None:
            raise missing
        self._finish(failed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exception: BaseException | None, _traceback: object) -> None:
        if self._released:
            return
        missing = None
        try:
            missing = self._missing()
        finally:
            # Nobody releases after the block, so nothing may stay held, updated or not.
            self._finish(failed=exception is not None)
        if missing is not None:
            raise missing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _type: object, exception: BaseException | None, _traceback: object) -> None:
        self.__exit__(_type, exception, _traceback)

    def _under(self, permit: shmlimit.Permit) -> Self:
        """Gives its permit to an acquisition that was made before the permit was taken."""
        self._permit = permit
        return self

    def _warn_of(self, key: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(
                "Cannot update limit '%s': not acquired in this LimitSet. This key will be ignored. Available keys: %s",
                key,
                list(self.acquisitions),
            )

    def _missing(self) -> RuntimeError | None:
        if not self.successful:
            return None
        missing = sorted(
            key for key, part in self.acquisitions.items() if part._must_be_updated() and key not in self._updated
        )
        if not missing:
            return None
        return RuntimeError(f"Not all limits in the LimitSet were updated. Missing: {missing}")

    def _finish(self, *, failed: bool) -> None:
        self._released = True
        for part in self.acquisitions.values():
            part.release()
        # Popped atomically: if two threads release, only one finds it.
        permit: shmlimit.Permit | None = vars(self).pop("_permit", None)
        if permit is None:
            return
        try:
            # Amounts may be of the program's own classes, and may raise.
            usage = {
                key: exact_cost(part.used, decimals(part.limit))
                for key, part in self.acquisitions.items()
                if part.used is not None and part._must_be_updated()
            }
            if usage:
                permit.settle(usage)
        except shmlimit.PermitError:
            # In a forked child: only the parent may release what it holds.
            return
        finally:
            permit.release(failed)


class BaseLimitSet(ABC):
    """What a `LimitPool` needs of its sets. Any class with these methods counts as a subclass."""

    @abstractmethod
    def acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Takes what is requested, waiting if need be."""

    @abstractmethod
    async def async_acquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> LimitSetAcquisition:
        """Takes what is requested, waiting in a task of an event loop."""

    @abstractmethod
    def try_acquire(self, requested: Mapping[str, Amount] | None = None) -> LimitSetAcquisition:
        """Takes what is requested if that is possible at once."""

    @abstractmethod
    def release_limit_set_acquisition(self, acquisition: LimitSetAcquisition) -> None:
        """Releases an acquisition of this set."""

    @abstractmethod
    def get_stats(self) -> dict[str, Any]:
        """How full each limit is."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        if cls is not BaseLimitSet:
            return NotImplemented
        return all(callable(getattr(other, name, None)) for name in BaseLimitSet.__abstractmethods__)
