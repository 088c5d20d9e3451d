"""Segments: opening them, and the sets that they hold."""

from __future__ import annotations

import collections
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from shmlimit import _native
from shmlimit._clock import VirtualClock, current_clock
from shmlimit._declaration import Config, Fleet, LockKind, declaration
from shmlimit._errors import DeclarationError
from shmlimit._limits import Limits

if TYPE_CHECKING:
    from typing_extensions import Self

OpeningOptions: TypeAlias = tuple[bool, float | timedelta, bool, bool, bool]
"""How a segment was opened: strict, the timeout of locks, whether any owner is trusted, whether requests are logged,
and whether this process asks the store that hosts share."""

OnMismatch: TypeAlias = Literal["apply", "error", "recreate_if_unused"]
"""What becomes of a segment that exists with another declaration: see `open`."""

_log = logging.getLogger("shmlimit")


class Segment(_native.Segment, Mapping[str, Limits]):
    """A segment that this process is attached to: a mapping of the names of its sets to their handles.

    It may be used by any number of threads, and stays valid in forked children. As a context manager it is closed at
    the end. The process stays attached until the last object, handle and permit is gone.
    """

    __slots__ = ("__weakref__", "_clock", "_file", "_handles", "_options", "_successor")

    _clock: VirtualClock | None
    _file: tuple[int, int] | None
    _handles: weakref.WeakValueDictionary[str, Limits]
    _options: OpeningOptions
    _successor: Segment | None

    def __new__(
        cls,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        declaration: _native.Declaration | None = None,
        *,
        strict: bool = True,
        lock_timeout: float | timedelta = 2.0,
        trust_any_owner: bool = False,
        clock: VirtualClock | None = None,
        on_mismatch: OnMismatch = "apply",
        log_requests: bool = False,
        ask_store: bool = True,
    ) -> Self:
        """Opens a segment, as `open` does."""
        clock = clock or current_clock()
        self = super().__new__(
            cls,
            path,
            declaration,
            lock_timeout=lock_timeout,
            trust_any_owner=trust_any_owner,
            clock=clock,
            on_mismatch=on_mismatch,
            log_requests=log_requests,
            ask_store=ask_store,
        )
        self._clock = clock
        self._file = _file_at(self.path)
        self._handles = weakref.WeakValueDictionary()
        self._options = strict, lock_timeout, trust_any_owner, log_requests, ask_store
        self._successor = None
        if clock is None:
            with _opening:
                _opened[self.path, self._options] = self
        for mismatch in self.mismatches:
            _tell(self.path, mismatch)
        return self

    @property
    def strict(self) -> bool:
        """Whether a limit that a set does not have is an error, in place of a warning."""
        return self._options[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Limits:
        """Gives the set of that name. With `sets_on_demand` the first process that asks for it makes it.

        Args:
            name: The name.

        Returns:
            A handle, the same one as long as anyone has it. It keeps the segment open.

        Raises:
            UnknownSet: There is none; the message names those that there are.
            SegmentClosed: This object was closed.
        """
        handle = None if self.closed else self._handles.get(name)
        if handle is None:
            handle = self._handles.setdefault(name, Limits(self, name))
        return handle

    def __iter__(self) -> Iterator[str]:
        return iter(self.set_names)

    def __len__(self) -> int:
        return len(self.set_names)

    def __contains__(self, name: object) -> bool:
        return name in self.set_names

    def __repr__(self) -> str:
        holds = "(closed)" if self.closed else f"of {', '.join(self)}"
        return f"<Segment {self.path!r} {holds}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._clock is not None:
            raise TypeError(
                f"{self!r} goes by a clock of this process, which does not pickle: open it in the other one"
            )
        return reopen, (self.path, *self._options)

    def snapshot(self) -> dict[str, Any]:
        """Copies everything, without a lock: as `limitctl inspect --json`.

        Returns:
            Plain dictionaries, lists, strings and numbers. Amounts in it are in whole units, times in seconds.
        """
        snapshot: dict[str, Any] = json.loads(self._snapshot())
        return snapshot

    def key_snapshots(self, set_name: str) -> list[dict[str, Any]]:
        """Copies the state of each key of a set that has a row.

        Args:
            set_name: The set.

        Returns:
            The keys, in no order.
        """
        snapshots: list[dict[str, Any]] = json.loads(self._keys(set_name))
        return snapshots

    def key_snapshot(self, set_name: str, key: object) -> Any:
        """Copies the state of one key of a set.

        Args:
            set_name: The set.
            key: The key: str, bytes or int, or an address where the set counts networks.

        Returns:
            The key; None where it has no row, which is as if it had never been used. A list of the networks of an
            address.
        """
        return json.loads(self._key(set_name, key))

    @property
    def mismatches(self) -> list[dict[str, Any]]:
        """In what the segment differed from the declaration that it was opened with, set by set.

        Each has `set`, `outcome` (`"upgraded"`, `"replaced"`, `"kept_newer"`, `"kept_edited"`), `differences`,
        `declared_version`, `segment_version` and `message`. A file with another mode than is declared is one more,
        whose `set` is None and whose outcome is `"kept_mode"`.
        """
        mismatches: list[dict[str, Any]] = json.loads(self._mismatches())
        return mismatches

    def apply(self, config: Config) -> list[str]:
        """Changes capacities, windows, bursts, lease times and metadata in place, for all processes, without a burst.

        As with `limitctl apply`, this counts as an operator's change: programs that open the segment with their own
        declaration leave it, until that is of a higher version.

        Args:
            config: What is to be in force: the whole declaration.

        Returns:
            Each change that was made, in words.

        Raises:
            CannotApply: Something cannot change in place; nothing was changed.
        """
        return self._apply(declaration(config))

    def declaration(self) -> dict[str, Any]:
        """Reads what is in force now.

        Returns:
            The fields of the TOML, with every default written out.
        """
        fields: dict[str, Any] = json.loads(self._declaration().to_json())
        return fields

    def successor(self) -> Segment | None:
        """Gives the segment that is at the path by now, if this one was removed; opened as this was.

        To be asked after `Removed`, as often as one likes: each process opens it once, and looks for it ever more
        rarely, up to once a second, while there is none. Nothing is created.

        Returns:
            The segment; None where there is none yet, and as long as no operation has found this one removed.

        Raises:
            SegmentError: What is there cannot be used.
        """
        return self._open_successor() if self._has_successor() else None

    def _open_successor(self) -> Segment:
        known = self._successor
        if known is None or known.closed or known.removed:
            strict, lock_timeout, trust_any_owner, log_requests, ask_store = self._options
            known = self._successor = Segment(
                self.path,
                strict=strict,
                lock_timeout=lock_timeout,
                trust_any_owner=trust_any_owner,
                clock=self._clock,
                log_requests=log_requests,
                ask_store=ask_store,
            )
            _log.info("%s: the segment was removed, and its successor is open", self.path)
        return known

    @property
    def store_thread(self) -> dict[str, Any] | None:
        """What the thread of this process does that asks the store which hosts share; None where there is none.

        It has `running`; `problem`, why it could not be started or what was wrong with the store at its last attempt,
        or None; `round_trips`, `failures`, and `duties`: how often this process was the one of its host that asks. What
        is leased is in `snapshot`.
        """
        state: dict[str, Any] | None = json.loads(self._store_thread())
        return state

    def recover(self) -> dict[str, Any]:
        """Repairs what can be repaired, and gives back what dead processes hold; all that also happens by itself.

        Returns:
            What was done, for each set.
        """
        report: dict[str, Any] = json.loads(self._recover())
        return report


# What was logged: a program may open a segment in many places.
_policy_headers: set[tuple[str, str]] = set()


def _tell(path: str, mismatch: dict[str, Any]) -> None:
    """Logs, once in this process, in what a segment differed from the declaration that it was opened with."""
    if (path, mismatch["message"]) in _policy_headers:
        return
    _policy_headers.add((path, mismatch["message"]))
    # What a higher version changes is as it was meant.
    level = logging.INFO if mismatch["outcome"] == "upgraded" else logging.WARNING
    fields = {name: value for name, value in mismatch.items() if name not in ("message", "set")}
    _log.log(level, "%s: %s", path, mismatch["message"], extra={"segment": path, "set_name": mismatch["set"], **fields})


# The segments of this process, for handles that arrive pickled.
_opened: weakref.WeakValueDictionary[tuple[str, OpeningOptions], Segment] = weakref.WeakValueDictionary()
# Those that arrived last stay open: workers that are given a handle with every task release it between them.
_arrived: collections.deque[Segment] = collections.deque(maxlen=16)
_opening = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_opening=threading.Lock()))
os.register_at_fork(after_in_child=_native.start_fleet_threads_after_fork)


def open(  # noqa: A001
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    config: Config | None = None,
    *,
    mode: int | str | None = None,
    participants: int | None = None,
    lock: LockKind | None = None,
    strict: bool = True,
    lock_timeout: float | timedelta = 2.0,
    trust_any_owner: bool = False,
    clock: VirtualClock | None = None,
    on_mismatch: OnMismatch = "apply",
    version: int | None = None,
    log_requests: bool = False,
    fleet: Fleet | None = None,
    ask_store: bool = True,
) -> Segment:
    """Opens a segment; with a declaration, creates it where it does not exist yet.

    Args:
        path: The file, usually in /dev/shm; where the declaration says it unless given.
        config: The declaration: the path of a file of TOML, one or more `LimitSet`s, or a mapping as of the TOML.
        mode: Permissions of the file, such as 0o660 or `"0660"`; 0o600 unless given. Only beside `LimitSet`s. A file
            that exists keeps its own: a difference is in `mismatches` and logged, with the command that changes it.
        participants: How many processes may have it open at once; 256 unless given. Only beside `LimitSet`s.
        lock: What the locks are: `"slot"` for processes of several PID namespaces or C libraries, such as those of two
            containers that share a directory; `"robust"` unless given. Only beside `LimitSet`s.
        strict: Makes limits that are named and that a set does not have an error; otherwise they are skipped, with a
            warning once for each name.
        lock_timeout: Seconds that an operation waits for a lock before it says that its holder is stuck.
        trust_any_owner: Accepts a file that someone else may have planted.
        clock: By which its limits go, for tests; the real time unless given.
        on_mismatch: What becomes of a segment that exists with another declaration. `"apply"`: what can change in the
            live segment is changed, for all processes; what is in force stays where it is of a higher version, or
            where an operator has changed it and this version is no higher. `"error"`: `ConfigMismatch`, unless this
            version is lower. `"recreate_if_unused"`: a new file, where no other process has it open; what was counted
            is lost. All but what a higher version changes is logged by the logger `shmlimit` as a warning.
        version: Of the declaration, from 1 to 2^63 - 1, in place of that in it; without one, it is below all others.
            Raise it with each change, so that workers of two releases may be started in any order.
        log_requests: Tells the logger `shmlimit`, at the level INFO, of each request that is refused (`request_denied`)
            and each that has waited (`backpressure_wait`), of all handles of what is opened here; of each kind and set
            at most ten times a second. The records have the fields `event`, `set_name`, `label`, `limit`, `reason`,
            `retry_after`, `waited`, `admitted`, and `left_out`: how many were not notified of since the last one.
        fleet: The store that hosts share, for limits that are declared with `fleet`: its URL, such as
            `"redis://10.0.0.5:6379/0"`, or `{"url": ..., "host": ...}`. User and password must not be in it. Only
            beside `LimitSet`s.
        ask_store: Whether this process takes part in asking that store, where the segment has one: by a native thread,
            which never takes the interpreter's lock, and which forked children have, too. It runs until the last object
            of what is opened here is gone or closed, and never where there is a `clock`. One process of the host asks
            at a time.

    Returns:
        The segment.

    Raises:
        NotFound: There is no segment, and no declaration to create it.
        ConfigMismatch: The segment exists with another declaration, and that cannot change, or may not; the message
            says what differs, and what to do.
        DeclarationError: The declaration is wrong, or no path is given.
        SegmentError: The file cannot be used.
    """
    if config is None and any(each is not None for each in (mode, participants, lock, version, fleet)):
        raise DeclarationError(
            "mode, participants, lock, version and fleet are declared with what a segment is created with: give the "
            "sets, too"
        )
    declared = (
        None
        if config is None
        else declaration(config, mode=mode, participants=participants, lock=lock, version=version, fleet=fleet)
    )
    file = path if path is not None else declared and declared.path
    if file is None:
        raise DeclarationError("give the path of the segment, or declare it: path in [segment]")
    return Segment(
        file,
        declared,
        strict=strict,
        lock_timeout=lock_timeout,
        trust_any_owner=trust_any_owner,
        clock=clock,
        on_mismatch=on_mismatch,
        log_requests=log_requests,
        ask_store=ask_store,
    )


def reopen(
    path: str,
    strict: bool,
    lock_timeout: float | timedelta,
    trust_any_owner: bool,
    log_requests: bool = False,
    ask_store: bool = True,
) -> Segment:
    """Opens a segment that a pickle names, or gives the one that this process has open.

    Args:
        path: The file.
        strict: As it was opened.
        lock_timeout: As it was opened.
        trust_any_owner: As it was opened.
        log_requests: As it was opened; a worker of a version without it does not say.
        ask_store: As it was opened, likewise.

    Returns:
        The segment.
    """
    options: OpeningOptions = strict, lock_timeout, trust_any_owner, log_requests, ask_store
    with _opening:
        segment = _opened.get((path, options))
    if segment is not None and not segment.closed and segment._file == _file_at(path):
        return segment
    segment = open(
        path,
        strict=strict,
        lock_timeout=lock_timeout,
        trust_any_owner=trust_any_owner,
        log_requests=log_requests,
        ask_store=ask_store,
    )
    _arrived.append(segment)
    return segment


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file there is at a path: a segment may have been removed, and another one be in its place."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
