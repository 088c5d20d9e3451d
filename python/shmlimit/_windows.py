"""A directory of segments, one for each kind and length of window, for limiters that name their limits as they go.

Rate limits there are made in passing: "5 per minute" is first heard of when the first request under it comes. A segment
declares its limits when it is made; so each is a file of its own, made by whichever process needs it first.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, get_args

import shmlimit
from shmlimit import Keyed, Limits, LimitSet
from shmlimit._declaration import WhenFull

_Declare: TypeAlias = Callable[[], "list[shmlimit.Rate | shmlimit.Calls]"]

_log = logging.getLogger("shmlimit")

# Files that are something else have other names.
_SUFFIX = ".limits"
_SET = "keys"

# What all files of a directory take together where their sizes are not said, in bytes: a container has 64 MB in
# /dev/shm unless set otherwise, and others use it, too. Each file takes a quarter of what those before it left.
_ROOM = 56 * 2**20
_FEWEST_KEYS = 100

# Of a row: fingerprint and counts, before the words of its limits; and its tag.
_HEAD = 48
_TAG = 2
_LINE = 64
# The share of rows that are in use when as many keys are kept as were declared.
_FILL = 0.8

# From which share of its rows on a table is reported as nearly full.
_NEARLY_FULL = 0.8


class Table:
    """The keyed set of one file, and a look now and then at how full it is."""

    def __init__(self, limits: Limits, directory: WindowDirectory) -> None:
        self.limits = limits
        self._directory = directory
        self._uses_to_look = 1

    def used(self) -> Limits:
        """The set, to be used once."""
        self._uses_to_look -= 1
        if self._uses_to_look <= 0:
            self._look()
        return self.limits

    def _look(self) -> None:
        usage = self.limits.table_usage() or {}
        # A look takes as long as so many uses; and meanwhile no more than a sixteenth of the rows can be filled.
        self._uses_to_look = max(16, usage.get("rows", 0) // 16)
        self._directory.tell(self.limits.path, usage)


class WindowDirectory:
    """Keyed sets, in files of one directory that any number of processes open at once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_keys: int | None = None,
        when_full: WhenFull = "evict_least_used",
    ) -> None:
        """Checks the directory, if it is there.

        It is made with its first file, by the process that counts first: a server that becomes another user after it
        has loaded the application makes it as that user.

        Args:
            path: The directory, best under `/dev/shm`.
            max_keys: How many keys each file keeps apart at once, at least. Unless given, as many as there is room for
                in a quarter of what is left of 56 MiB.
            when_full: What becomes of a new key when there are as many that have something used.

        Raises:
            PermissionError: The directory is someone else's, or others can write in it.
            ValueError: An option has no such value.
        """
        if max_keys is not None and max_keys < 1:
            raise ValueError(f"max_keys is {max_keys}, but must be at least 1")
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full is {when_full!r}, but must be one of {', '.join(get_args(WhenFull))}")
        self.path = Path(path)
        self.when_full = when_full
        self._max_keys = max_keys
        # Files of other shapes are other files: workers with other options, as there are while a service is
        # restarted one by one, do not get in each other's way.
        keys = "auto" if max_keys is None else f"{max_keys}-keys"
        self._shape = keys if when_full == "evict_least_used" else f"{keys}.{when_full}"
        # Without a lock, which a fork could leave taken for ever: to open a file twice does no harm.
        self._opened: dict[str, Table] = {}
        self._policy_headers: set[str] = set()
        if self.path.exists():
            self._require_private()

    def limits(self, kind: str, state_words: int, declare: _Declare) -> Limits:
        """The set of a kind, to be used once: from this process's memory, the file, or a new file.

        Args:
            kind: Names the file; the same for the same declaration, another for another.
            state_words: How many words of 64 bits the limits keep for each key.
            declare: Declares the limits, where this process has not opened the file yet.
        """
        opened = self._opened.get(kind)
        if opened is None:
            self._make()
            opened = self._opened.setdefault(kind, Table(self._create(kind, state_words, declare), self))
        return opened.used()

    def find(self, kind: str) -> Limits | None:
        """The set of that kind, if any process has made it."""
        opened = self._opened.get(kind)
        if opened is None:
            try:
                opened = self._opened.setdefault(kind, Table(shmlimit.open(self._file(kind))[_SET], self))
            except (shmlimit.NotFound, shmlimit.Removed):
                return None
        return opened.limits

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
        return sum((limits.table_usage() or {}).get("used", 0) for limits in self.known(""))

    def tell(self, file: str, usage: dict[str, int]) -> None:
        """Warns, once for each process, of a table that is nearly full, and of one that has begun to evict."""
        rows, used = usage.get("rows", 0), usage.get("used", 0)
        if used >= _NEARLY_FULL * rows > 0 and "full" not in self._policy_headers:
            self._policy_headers.add("full")
            _log.warning(
                "%s: %d of %d rows are in use. There is one for each client, endpoint and limit: declare max_keys=%d",
                file,
                used,
                rows,
                2 * rows,
            )
        if usage.get("evicted_in_use", 0) > 0 and "evicted" not in self._policy_headers:
            self._policy_headers.add("evicted")
            _log.warning(
                "%s: the table is full, and %d keys that had something used were evicted (%s). What they had used is "
                "forgotten: declare max_keys=%d",
                file,
                usage["evicted_in_use"],
                self.when_full,
                2 * rows,
            )

    def _create(self, kind: str, state_words: int, declare: _Declare) -> Limits:
        path = self._file(kind)
        try:
            return shmlimit.open(path)[_SET]
        except (shmlimit.NotFound, shmlimit.Removed):
            pass  # What was retired and is still there is replaced by what is opened with a declaration.
        max_keys = self._max_keys or self._keys_for_the_room_left(state_words)
        # Without their names a row of a fixed window takes 66 bytes, with them 114.
        keyed = Keyed(max_keys, when_full=self.when_full, store_keys=False)
        # No one waits here, and places to wait would take room.
        declaration = LimitSet(_SET, limits=declare(), keyed=keyed, waiters=0)
        try:
            return shmlimit.open(path, declaration)[_SET]
        except shmlimit.ConfigMismatch:
            # Another process was first, and found more room or less.
            return shmlimit.open(path)[_SET]

    def _keys_for_the_room_left(self, state_words: int) -> int:
        row = -(-(_HEAD + 8 * state_words) // _LINE) * _LINE + _TAG
        taken = sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.name.endswith(_SUFFIX))
        return max(_FEWEST_KEYS, int((_ROOM - taken) / 4 * _FILL) // row)

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
            raise NotADirectoryError(f"{self.path} is not a directory")
        if status.st_uid not in (os.geteuid(), 0) or (status.st_mode & stat.S_IWOTH):
            raise PermissionError(
                f"{self.path} belongs to user {status.st_uid} or lets everyone write: limits kept there could be "
                "anyone's. Name a directory of your own; it is made if it is not there"
            )
