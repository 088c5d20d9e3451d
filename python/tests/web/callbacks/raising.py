"""Things that raise, and a check that nothing stays taken when they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import shmlimit as sl


class Failure(Exception):
    """Raised by a program whose work fails."""


class Interruption(BaseException):
    """Raised where something ends the program or its task, like `KeyboardInterrupt`."""


KINDS = (Failure, Interruption)

Raises = Callable[..., NoReturn]


def raises(kind: type[BaseException]) -> Raises:
    """Makes a callable that raises, whatever it is called with."""

    def raise_it(*_args: object, **_kwargs: object) -> NoReturn:
        raise kind("the program's")

    return raise_it


def raises_when_awaited(kind: type[BaseException]) -> Callable[..., Any]:
    """Makes an asynchronous function that raises when it is awaited."""

    async def raise_it(*_args: object, **_kwargs: object) -> NoReturn:
        raise kind("the program's")

    return raise_it


@dataclass(frozen=True)
class Places:
    """A segment with one place in each of two sets."""

    segment: sl.Segment

    @classmethod
    def at(cls, path: Any) -> Places:
        return cls(
            sl.open(
                path,
                [
                    sl.LimitSet(
                        "keyed",
                        [sl.Concurrency("places", 1)],
                        keyed=8,
                        tiers=[sl.Tier("large", {"places": {"capacity": 1}})],
                    ),
                    sl.LimitSet("plain", [sl.Concurrency("places", 1)]),
                    sl.LimitSet("spent", [sl.Rate("tokens", 100, "1h"), sl.Budget("budget", 100, "1h")], keyed=8),
                ],
            )
        )

    @property
    def keyed(self) -> sl.SetHandle:
        return self.segment["keyed"]

    @property
    def plain(self) -> sl.SetHandle:
        return self.segment["plain"]

    @property
    def spent(self) -> sl.SetHandle:
        return self.segment["spent"]

    def assert_nothing_is_taken(self) -> None:
        """Nothing is held or queued, and each place can be taken."""
        for described in self.segment.snapshot()["sets"]:
            assert (described["holds"], described["tickets"]) == ([], []), described["name"]
        for permit in (self.plain.try_acquire(), self.keyed.try_acquire(key="k")):
            assert permit
            permit.release()


class RaisingMapping(Mapping[str, Any]):
    """A mapping that raises in any of its methods."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.raise_it = raises(kind)

    def __getitem__(self, _key: str) -> NoReturn:
        self.raise_it()

    def __iter__(self) -> Iterator[str]:
        self.raise_it()

    def __len__(self) -> int:
        self.raise_it()


class RaisingNumber:
    """Something like a number that raises when it is read."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.__raise_it = raises(kind)

    def __index__(self) -> int:
        self.__raise_it()

    def __int__(self) -> int:
        self.__raise_it()

    def __float__(self) -> float:
        self.__raise_it()

    def __str__(self) -> str:
        self.__raise_it()

    def __lt__(self, _other: object) -> bool:
        self.__raise_it()

    def __gt__(self, _other: object) -> bool:
        self.__raise_it()


class RaisingResponse:
    """A response whose headers cannot be read."""

    status_code = 429

    def __init__(self, kind: type[BaseException]) -> None:
        self.__raise_it = raises(kind)

    @property
    def headers(self) -> dict[str, str]:
        self.__raise_it()


def raising_keys(kind: type[BaseException]) -> Iterator[str]:
    """Keys, after the first of which the iterator raises."""
    yield "k"
    raise kind("the program's")
