"""A folder of segments, one for each kind and length of window, for limiters that name their limits as they go.

Rate limits there are made in passing: "5 per minute" is first heard of when the first request under it comes. A segment
declares its limits when it is made; so each is a file of its own, made by whichever process needs it first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import shmlimit
from shmlimit import Keyed, Limits, LimitSet

WhenFull: TypeAlias = Literal["refuse", "evict_oldest"]

# Files that are something else have other names.
_SUFFIX = ".limits"
_SET = "keys"


class WindowFolder:
    """Keyed sets of one limit each, in files of one folder that any number of processes open at once."""

    def __init__(self, path: str | os.PathLike[str], *, max_keys: int = 10_000, when_full: WhenFull = "refuse") -> None:
        """Checks the folder, if it is there.

        It is made with its first file, by the process that counts first: a server that becomes another user after it
        has loaded the application makes it as that user.

        Args:
            path: The folder, best under `/dev/shm`.
            max_keys: How many keys each file keeps apart at once.
            when_full: What becomes of a new key when there are as many that have something used.

        Raises:
            PermissionError: The folder is somebody else's, or others can write in it.
            ValueError: An option has no such value.
        """
        if max_keys < 1:
            raise ValueError(f"max_keys is {max_keys}, but must be at least 1")
        if when_full not in ("refuse", "evict_oldest"):
            raise ValueError(f"when_full is {when_full!r}, but must be 'refuse' or 'evict_oldest'")
        self.path = Path(path)
        self._keyed = Keyed(max_keys, when_full=when_full)
        # Files of other shapes are other files: workers with other options, as there are while a service is
        # restarted one by one, do not get in each other's way.
        self._shape = f"{max_keys}-keys" + (".evicts" if when_full == "evict_oldest" else "")
        # Without a lock, which a fork could leave taken for ever: to open a file twice does no harm.
        self._opened: dict[str, Limits] = {}
        if self.path.exists():
            self._require_private()

    def limits(self, kind: str, declare: Callable[[], shmlimit.Rate | shmlimit.Calls]) -> Limits:
        """The set of a limit: from this process's memory, the file, or a new file.

        Args:
            kind: Names the file; the same for the same declaration, another for another.
            declare: Declares the limit, where this process has not opened the file yet.
        """
        opened = self._opened.get(kind)
        if opened is None:
            self._make()
            path = self._file(kind)
            declaration = LimitSet(_SET, limits=[declare()], keyed=self._keyed)
            opened = self._opened.setdefault(kind, shmlimit.open(path, declaration)[_SET])
        return opened

    def find(self, kind: str) -> Limits | None:
        """The set of that kind, if any process has made it."""
        opened = self._opened.get(kind)
        if opened is None:
            try:
                opened = self._opened.setdefault(kind, shmlimit.open(self._file(kind))[_SET])
            except shmlimit.NotFound:
                return None
        return opened

    def known(self, beginning: str) -> Iterator[Limits]:
        """The sets of this shape that any process has made, of those kinds whose names begin so."""
        ending = f".{self._shape}{_SUFFIX}"
        for name in sorted(os.listdir(self.path)) if self.path.exists() else ():
            if name.startswith(beginning) and name.endswith(ending):
                found = self.find(name.removesuffix(ending))
                # It may have been removed since it was listed.
                if found is not None:
                    yield found

    def forget(self) -> None:
        """Opens every file anew when it is needed next, as after one was retired."""
        self._opened.clear()

    def keys(self) -> int:
        """How many keys have something used, in all files."""
        return sum(len(shmlimit.open(limits.path).key_snapshots(_SET)) for limits in self.known(""))

    def _file(self, kind: str) -> Path:
        return self.path / f"{kind}.{self._shape}{_SUFFIX}"

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_private()
        if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
            status = os.stat(self.path)
            raise PermissionError(
                f"{self.path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}, and this "
                f"process is of user {os.geteuid()}: remove it, or give it to that user. It is made by the user that "
                "counts in it first"
            )

    def _require_private(self) -> None:
        status = os.lstat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{self.path} is not a folder")
        if status.st_uid not in (os.geteuid(), 0) or (status.st_mode & stat.S_IWOTH):
            raise PermissionError(
                f"{self.path} belongs to user {status.st_uid} or lets everybody write: limits kept there could be "
                "anybody's. Name a folder of your own; it is made if it is not there"
            )
