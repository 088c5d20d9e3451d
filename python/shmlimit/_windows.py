"""A segment that is a directory, for limiters that make up limits as they go.

Such a limiter learns of "5 per minute" only from the first request under it. So each limit is a set of its own, in a
file of its own, which is created by the first process that needs it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote

import shmlimit
from shmlimit import Keyed, LimitSet, SetHandle
from shmlimit._declaration import WhenFull

# The endings of sets' names that say what happens when a set is full. A name has at most 64 bytes.
_WHEN_FULL: dict[WhenFull, str] = {"evict_least_used": "", "evict_oldest": "-oldest", "refuse": "-refuse"}

_Declare: TypeAlias = Callable[[], "list[shmlimit.Rate | shmlimit.Calls]"]

_log = logging.getLogger("shmlimit")

# Bytes for all files of a directory together, unless `max_keys` says how large they are: by default a container has
# 64 MB in /dev/shm, and other programs use it, too. Each file takes a quarter of what the earlier ones left.
_ROOM = 56 * 2**20
_FEWEST_KEYS = 100

# Bytes of a row: its fingerprint and counts, which precede its limits' words; and its tag.
_HEAD = 48
_TAG = 2
_LINE = 64
# The fraction of rows in use when the table holds `max_keys` keys.
_FILL = 0.8

# A table is reported as nearly full once this fraction of its rows is in use.
_NEARLY_FULL = 0.8


class Table:
    """The keyed set of one file, which checks now and then how full it is."""

    def __init__(self, limits: SetHandle, directory: WindowDirectory) -> None:
        self.limits = limits
        self._directory = directory
        self._uses_to_look = 1

    def used(self) -> SetHandle:
        """Returns the set, for one use."""
        self._uses_to_look -= 1
        if self._uses_to_look <= 0:
            self._look()
        return self.limits

    def _look(self) -> None:
        usage = self.limits.table_usage() or {}
        # Checking costs as much as about this many uses, and until the next check at most a sixteenth of the rows can
        # fill up.
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
        """Checks the directory, if it exists.

        The first process that counts something creates it, together with its first file: a server that switches users
        after loading the application creates it as the new user.

        Args:
            path: The directory, preferably under `/dev/shm`.
            max_keys: How many keys each file tells apart at once, at least. By default, as many as fit into a quarter
                of what is left of 56 MiB.
            when_full: What happens to a new key when every row it could take is in use.

        Raises:
            PermissionError: The directory belongs to someone else, or others can write to it.
            ValueError: An option's value is invalid.
        """
        if max_keys is not None and max_keys < 1:
            raise ValueError(f"max_keys is {max_keys}, but must be at least 1")
        if when_full not in _WHEN_FULL:
            raise ValueError(f"when_full is {when_full!r}, but must be one of {', '.join(_WHEN_FULL)}")
        self.path = Path(path)
        self.when_full = when_full
        self._max_keys = max_keys
        # Other options mean other files, so that workers with different options, as during a rolling restart, do not
        # get in each other's way.
        keys = "auto" if max_keys is None else f"{max_keys}-keys"
        self._shape = f"{keys}{_WHEN_FULL[when_full]}"
        # No lock, which a fork could leave locked forever: opening a file twice does no harm.
        self._opened: dict[str, Table] = {}
        self._already_logged: set[str] = set()
        if self.path.exists():
            self._require_private()

    def limits(self, kind: str, state_words: int, declare: _Declare) -> SetHandle:
        """Returns the set of a kind, for one use: already open, from its file, or from a new file.

        Args:
            kind: The beginning of the set's name; each declaration has its own.
            state_words: How many 64-bit words the limits keep for each key.
            declare: Declares the limits. Called if this process has not opened the file yet.
        """
        opened = self._opened.get(kind)
        if opened is None:
            self._make()
            opened = self._opened.setdefault(kind, Table(self._create(kind, state_words, declare), self))
        return opened.used()

    def find(self, kind: str) -> SetHandle | None:
        """Returns the set of a kind if any process has created it."""
        opened = self._opened.get(kind)
        if opened is None:
            try:
                opened = self._opened.setdefault(kind, Table(self._open(kind), self))
            except (shmlimit.NotFound, shmlimit.Removed):
                return None
        return opened.limits

    def known(self, beginning: str) -> Iterator[SetHandle]:
        """The existing sets with these options whose kind begins with `beginning`."""
        ending = f".{self._shape}"
        for name in map(unquote, sorted(os.listdir(self.path)) if self.path.exists() else ()):
            if name.startswith(beginning) and name.endswith(ending):
                found = self.find(name.removesuffix(ending))
                # None if it was removed since the listing.
                if found is not None:
                    yield found

    def forget(self) -> None:
        """Drops all open files, so that each is opened again when needed, for example after one was retired."""
        self._opened.clear()

    def keys(self) -> int:
        """How many keys have used something, in all files together."""
        return sum((limits.table_usage() or {}).get("used", 0) for limits in self.known(""))

    def tell(self, file: str, usage: dict[str, int]) -> None:
        """Warns, once per process each, that a table is nearly full and that one has begun to evict keys in use."""
        rows, used = usage.get("rows", 0), usage.get("used", 0)
        if used >= _NEARLY_FULL * rows > 0 and "full" not in self._already_logged:
            self._already_logged.add("full")
            _log.warning(
                "%s: %d of %d rows are in use. There is one for each client, endpoint and limit: declare max_keys=%d",
                file,
                used,
                rows,
                2 * rows,
            )
        if usage.get("evicted_in_use", 0) > 0 and "evicted" not in self._already_logged:
            self._already_logged.add("evicted")
            _log.warning(
                "%s: the table is full, and %d keys that had something used were evicted (%s). What they had used is "
                "forgotten: declare max_keys=%d",
                file,
                usage["evicted_in_use"],
                self.when_full,
                2 * rows,
            )

    def _create(self, kind: str, state_words: int, declare: _Declare) -> SetHandle:
        try:
            return self._open(kind)
        except (shmlimit.NotFound, shmlimit.Removed):
            pass  # Opening with a declaration replaces a retired file that is still there.
        max_keys = self._max_keys or self._keys_for_the_room_left(state_words)
        # A fixed window's row takes 66 bytes without the key's text, 114 with it.
        keyed = Keyed(max_keys, when_full=self.when_full, store_keys=False)
        # Nobody waits here, and a queue would take room.
        name = self._name(kind)
        declaration = LimitSet(name, limits=declare(), keyed=keyed, waiters=0)
        try:
            return shmlimit.open(self._file(name), declaration)[name]
        except shmlimit.ConfigMismatch:
            # Another process was first, and found a different amount of room.
            return self._open(kind)

    def _open(self, kind: str) -> SetHandle:
        name = self._name(kind)
        return shmlimit.open(self._file(name))[name]

    def _keys_for_the_room_left(self, state_words: int) -> int:
        row = -(-(_HEAD + 8 * state_words) // _LINE) * _LINE + _TAG
        return max(_FEWEST_KEYS, int((_ROOM - self._taken()) / 4 * _FILL) // row)

    def _taken(self) -> int:
        """The bytes of all files, except those that are being created or have just been removed."""
        taken = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    taken += 0 if entry.name.startswith(".") else entry.stat().st_size
        return taken

    def _name(self, kind: str) -> str:
        return f"{kind}.{self._shape}"

    def _file(self, name: str) -> Path:
        """The file of a set, in a directory with a file for each set."""
        return self.path / quote(name, safe="")

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_private()
        if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
            status = os.stat(self.path)
            raise PermissionError(
                f"{self.path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}, and this "
                f"process runs as user {os.geteuid()}: remove it, or give it to that user. It is made by the user that "
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
