"""The interface that all limit sets have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._acquisition import LimitSetAcquisition
    from ._limits import Amount


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
