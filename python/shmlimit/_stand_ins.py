"""Stand-ins for sets that were opened before a test: fresh ones with the same declaration, for that test alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmlimit import _native
from shmlimit._clock import VirtualClock
from shmlimit._pool import Pool
from shmlimit._segment import Segment, open_with, reopen
from shmlimit._set_handle import SetHandle


class StandIns:
    """Sets in a directory of a test, each standing in for one that was opened elsewhere."""

    def __init__(self, directory: Path, clock: VirtualClock | None) -> None:
        """Makes no stand-in yet: each is made when its set is first asked.

        Args:
            directory: Where to keep the stand-ins.
            clock: The clock that they follow; None for real time.
        """
        self._directory = directory
        self._clock = clock
        self._segments: dict[object, Segment] = {}
        self._pools: dict[Pool, Pool] = {}
        self._making = threading.Lock()

    def of_set(self, limits: SetHandle) -> SetHandle:
        """The set that stands in for another. Sets of the test itself, and sets that follow a clock, stay themselves.

        Args:
            limits: The set.
        """
        segment = limits._segment
        if segment._clock is not None or Path(limits.path).parent == self._directory:
            return limits
        key = limits.path, segment._options, limits.name
        with self._making:
            stand_in = self._segments.get(key)
            if stand_in is None:
                path = self._directory / f"stand-in-{len(self._segments)}.limits"
                # A handle may outlive the segment object that it came from.
                source = reopen(limits.path, *segment._options) if segment.closed else segment
                stand_in = self._segments[key] = open_with(source, limits.name, path, self._clock)
        found = stand_in[limits.name]
        return found if limits.label is None else found.labelled(limits.label)

    def of_pool(self, pool: Pool) -> Pool:
        """The pool whose sets stand in for those of another pool.

        Args:
            pool: The pool.
        """
        made = self._pools.get(pool)
        if made is None:
            members = [self.of_set(member) for member in pool.members]
            if all(one is other for one, other in zip(members, pool.members, strict=True)):
                return pool
            strategy: Any = pool.strategy
            made = Pool(members, strategy, failover=pool.failover, worker_index=pool.worker_index)
            self._pools[pool] = made
        return made

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While this is entered, anything in this process that asks a set asks its stand-in."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                for owner, find in ((SetHandle, self.of_set), (Pool, self.of_pool)):
                    for name in _asking(owner):
                        patch.setattr(owner, name, _diverted(getattr(owner, name), find))
                yield
        finally:
            for segment in self._segments.values():
                segment.close()


def _asking(owner: type) -> Iterator[str]:
    """The methods of a native class that ask or change limits."""
    for base in owner.__mro__:
        if base.__module__ == _native.__name__:
            for name, member in vars(base).items():
                if callable(member) and (not name.startswith("_") or name in {"_begin", "_cold_wait"}):
                    yield name


def _diverted(method: Callable[..., Any], find: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def divert(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(find(self), *args, **kwargs)

    return divert
