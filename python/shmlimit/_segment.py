"""Segments: opening them, and the sets in them."""

from __future__ import annotations

import collections
import json
import logging
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from shmlimit import _greenlets, _native
from shmlimit._clock import VirtualClock, current_clock
from shmlimit._declaration import Config, Fleet, LockKind, declaration
from shmlimit._errors import DeclarationError
from shmlimit._set_handle import SetHandle

if TYPE_CHECKING:
    from typing_extensions import Self

OnMismatch: TypeAlias = Literal["apply", "error", "recreate_if_unused"]
"""What to do if the segment exists with another declaration: see `open`."""

_log = logging.getLogger("shmlimit")


class OpeningOptions(NamedTuple):
    """The options that a segment was opened with, in the order in which pickles have them: see `open`."""

    strict: bool
    lock_timeout: float | timedelta
    trust_any_owner: bool
    log_requests: bool
    ask_store: bool


class Segment(_native.Segment, Mapping[str, SetHandle]):
    """A segment that this process is attached to: a mapping from the names of its sets to their handles.

    It may be used by any number of threads, and stays valid in forked children. Used as a context manager, it is closed
    at the end of the block. The process stays attached until the last object, handle and permit is gone.

    If it is a directory with a file for each set, it has the sets that it was opened with. Any other set in the
    directory is opened when it is asked for.
    """

    __slots__ = ("__weakref__", "_clock", "_file", "_handles", "_options", "_successor")

    _clock: VirtualClock | None
    _file: tuple[tuple[int, int], ...] | None
    _handles: weakref.WeakValueDictionary[str, SetHandle]
    _options: OpeningOptions
    _successor: Segment | None

    def __new__(
        cls,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
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
        """Opens a segment, like `open`; without a path, makes one, like `anonymous`."""
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
        self._options = OpeningOptions(strict, lock_timeout, trust_any_owner, log_requests, ask_store)
        self._successor = None
        if clock is None:
            with _opening:
                _opened[self.path, self._options] = self
        for mismatch in self.mismatches:
            _tell(self.path, mismatch)
        for warning in [] if declaration is None else declaration.warnings():
            if _is_new(self.path, warning):
                _log.warning("%s: %s", self.path, warning, extra={"segment": self.path})
        return self

    @property
    def strict(self) -> bool:
        """Whether naming a limit that a set does not have is an error instead of a warning."""
        return self._options.strict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> SetHandle:
        """Returns the set of that name.

        Args:
            name: The name.

        Returns:
            A handle: the same one for as long as anything still refers to it. It keeps the segment open.

        Raises:
            UnknownName: There is no such set; the message lists those that exist.
            SegmentClosed: This object was closed.
        """
        _greenlets.let_wait(SetHandle)
        handle = None if self.closed else self._handles.get(name)
        if handle is None:
            handle = self._handles.setdefault(name, SetHandle(self, name))
        return handle

    def __iter__(self) -> Iterator[str]:
        return iter(self.set_names)

    def __len__(self) -> int:
        return len(self.set_names)

    def __contains__(self, name: object) -> bool:
        return name in self.set_names or (isinstance(name, str) and self.get(name) is not None)

    def __repr__(self) -> str:
        holds = "(closed)" if self.closed else f"of {', '.join(self)}"
        return f"<Segment {self.path!r} {holds}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._clock is not None:
            raise TypeError(f"{self!r} uses a clock of this process, which does not pickle: open it in the other one")
        return reopen, (self.path, *self._options)

    def snapshot(self) -> dict[str, Any]:
        """Copies the whole state, without taking a lock: what `limitctl inspect --json` prints, except `declaration`.

        Returns:
            Plain dictionaries, lists, strings and numbers. Amounts are in whole units, times in seconds.
        """
        snapshot: dict[str, Any] = json.loads(self._snapshot())
        return snapshot

    def key_snapshots(self, set_name: str) -> list[dict[str, Any]]:
        """Copies the state of every key in a set's table.

        Args:
            set_name: The set.

        Returns:
            The keys, in no particular order.
        """
        snapshots: list[dict[str, Any]] = json.loads(self._keys(set_name))
        return snapshots

    def key_snapshot(self, set_name: str, key: object) -> Any:
        """Copies the state of one key of a set.

        Args:
            set_name: The set.
            key: The key: str, bytes, int or UUID, or an address if the set counts networks.

        Returns:
            The key's state; None if it has no row, as if it had never been used. For an address, a list of its
            networks.
        """
        return json.loads(self._key(set_name, key))

    @property
    def mismatches(self) -> list[dict[str, Any]]:
        """How the segment differed from the declaration that it was opened with, by set.

        Each entry has `set`, `outcome` (`"upgraded"`, `"replaced"`, `"renewed"`, `"kept_newer"`, `"kept_edited"`),
        `differences`, `declared_version`, `segment_version` and `message`. `"renewed"` means that only the set's time
        zones changed, to what a newer database says. If the file's mode differs from the declared one, there is one
        more entry, with a `set` of None and the outcome `"kept_mode"`.
        """
        mismatches: list[dict[str, Any]] = json.loads(self._mismatches())
        return mismatches

    def apply(self, config: Config) -> list[str]:
        """Changes capacities, windows, bursts, lease times and metadata in place, for all processes, without a burst.

        As with `limitctl apply`, this counts as an operator's change: programs that open the segment with their own
        declaration keep it, unless their declaration has a higher version.

        Args:
            config: The whole declaration to put into force. In a directory, sets that do not exist yet are created, and
                sets that the declaration does not have stay as they are.

        Returns:
            Each change that was made, in words.

        Raises:
            ConfigMismatch: Something cannot be changed in place; nothing was changed.
        """
        return self._apply(declaration(config))

    def declaration(self) -> dict[str, Any]:
        """Reads the declaration that is in force now.

        Returns:
            The fields of the TOML, with every default written out.
        """
        fields: dict[str, Any] = json.loads(self._declaration().to_json())
        return fields

    def successor(self) -> Segment | None:
        """If this segment was removed, returns the one that is at its path now, opened with the same options.

        Call it after `Removed`, as often as you like: each process opens the new segment once. While there is none, the
        process looks for it less and less often, down to once a second. Nothing is created.

        Returns:
            The segment; None if there is none yet, or if no operation has found this one removed.

        Raises:
            SegmentError: The new segment cannot be used.
        """
        return self._open_successor() if self._has_successor() else None

    def _open_successor(self) -> Segment:
        known = self._successor
        if known is None or known.closed or known.removed:
            known = self._successor = Segment(self.path, clock=self._clock, **self._options._asdict())
            _log.info("%s: the segment was removed, and its successor is open", self.path)
        return known

    @property
    def store_thread(self) -> dict[str, Any] | None:
        """The state of the thread in which this process asks the store that hosts share; None if it has no such thread.

        It has `running`; `problem`, which says why the thread could not be started or what was wrong with the store at
        the last attempt, in the store's own words, or None; `cause`, what was wrong with the store in one word, such as
        `"refused"`, `"timed_out"`, `"out_of_memory"`, `"read_only"` or `"not_permitted"`, or None; `round_trips`;
        `failures`; and `duties`, how many times this process took over asking the store for its host. Leases are in
        `snapshot`.
        """
        state: dict[str, Any] | None = json.loads(self._store_thread())
        return state

    def recover(self) -> dict[str, Any]:
        """Repairs what can be repaired, and gives back what dead processes hold. All of this also happens by itself.

        Returns:
            What was done, for each set.
        """
        report: dict[str, Any] = json.loads(self._recover())
        return report


# The messages about declarations that are already logged: a program may open a segment in many places.
_already_logged: set[tuple[str, str]] = set()


def _is_new(path: str, message: str) -> bool:
    """Returns whether this process has yet to log a message, and notes that it is logged from now on."""
    is_new = (path, message) not in _already_logged
    _already_logged.add((path, message))
    return is_new


def _tell(path: str, mismatch: dict[str, Any]) -> None:
    """Logs, once per process, how a segment differed from the declaration that it was opened with."""
    if not _is_new(path, mismatch["message"]):
        return
    # A change by a higher version is intended.
    level = logging.INFO if mismatch["outcome"] == "upgraded" else logging.WARNING
    fields = {name: value for name, value in mismatch.items() if name not in ("message", "set")}
    _log.log(level, "%s: %s", path, mismatch["message"], extra={"segment": path, "set_name": mismatch["set"], **fields})


# The segments that this process has open, for handles that are unpickled.
_opened: weakref.WeakValueDictionary[tuple[str, OpeningOptions], Segment] = weakref.WeakValueDictionary()
# Keeps the last few unpickled segments open: workers that get a handle with every task drop it between tasks.
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
    """Opens a segment; with a declaration, creates it if it does not exist yet.

    Args:
        path: The file, usually in /dev/shm; defaults to the path in the declaration. If it ends in `/` or `.d`, or
            is a directory, it stands for a directory with a file for each set (`"/dev/shm/app.limits.d/"`): sets can
            then be added to the declaration and left out of it while processes run. Its parent must exist. A set that
            is left out keeps its file, which `limitctl list` names until it is removed.
        config: The declaration: the path of a TOML file, one or more `LimitSet`s, or a mapping with the TOML's fields.
        mode: The file's permissions, such as 0o660 or `"0660"`; default 0o600. Only with `LimitSet`s. An existing file
            keeps its own mode: the difference is in `mismatches` and logged, with the command that changes it.
        participants: How many processes may have it open at once; default 256. Only with `LimitSet`s.
        lock: The kind of lock: `"robust"` for the C library's robust mutex, for which all processes must be in one PID
            namespace and use one C library; default `"slot"`, which works for any processes. Only with `LimitSet`s.
        strict: Makes it an error to name a limit that a set does not have; otherwise such limits are skipped, with one
            warning for each name.
        lock_timeout: Seconds that an operation waits for a lock before it reports its holder as stuck.
        trust_any_owner: Accepts a file that someone else may have planted.
        clock: The clock that its limits follow, for tests; real time by default.
        on_mismatch: What to do if the segment exists with another declaration. `"apply"` changes what can be changed in
            the live segment, for all processes, but keeps settings of a higher version, and an operator's changes
            unless this version is higher. `"error"` raises `ConfigMismatch`, unless this version is lower.
            `"recreate_if_unused"` makes a new file if no other process has it open; its counts are lost. Everything
            except a change by a higher version is logged as a warning by the logger `shmlimit`.
        version: The declaration's version, from 1 to 2^63 - 1, overriding the one in it; a declaration without a
            version is lower than any other. Raise it with each change, so that workers of two releases may start in
            any order.
        log_requests: Logs each refused request (`request_denied`) and each that had to wait (`backpressure_wait`) to
            the logger `shmlimit` at level INFO, for all handles of the segment opened here; at most ten a second for
            each kind and set. The records have the fields `event`, `set_name`, `label`, `limit`, `reason`,
            `retry_after`, `waited`, `admitted`, and `left_out`: how many events were suppressed since the last record.
        fleet: The store that hosts share, for limits declared with `fleet`: its URL, such as
            `"redis://10.0.0.5:6379/0"`, or `{"url": ..., "host": ...}`. It must not contain a user or a password. Only
            with `LimitSet`s. Shared limits without a version, or with a burst below one lease, are logged as a warning.
        ask_store: Whether this process takes part in asking that store, if the segment has one. A native thread does
            the asking, and takes the GIL only to log that an outage begins or ends; forked children get a thread of
            their own. The thread runs until the last object of the segment opened here is gone or closed; with a
            `clock`, there is none. One process per host asks at a time.

    Returns:
        The segment.

    Raises:
        NotFound: There is no segment, and no declaration to create one from.
        ConfigMismatch: The segment exists with another declaration, and cannot or must not be changed to this one; the
            message says what differs, and what to do.
        DeclarationError: The declaration is invalid, or no path is given.
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


def anonymous(
    config: Config,
    *,
    participants: int | None = None,
    lock: LockKind | None = None,
    strict: bool = True,
    lock_timeout: float | timedelta = 2.0,
    clock: VirtualClock | None = None,
    version: int | None = None,
    log_requests: bool = False,
    fleet: Fleet | None = None,
    ask_store: bool = True,
) -> Segment:
    """Makes a segment without a file: for tests, for the threads of one program, and for programs that fork workers.

    This process and the children that it forks use it like any other segment. When the last of them is gone, so is the
    segment, with its counts, and nothing is left in /dev/shm. Its `path` is that of its descriptor, `/proc/PID/fd/N`:
    processes of the same user, such as those that `multiprocessing` spawns, and `limitctl`, can open it by that path as
    long as this process has it open. So its handles pickle, but unpickling one once this process no longer has the
    segment open raises `SegmentError`.

    Args:
        config: The declaration, as for `open`, without a checkpoint. A path in it is ignored.
        participants: As for `open`.
        lock: As for `open`.
        strict: As for `open`.
        lock_timeout: As for `open`.
        clock: As for `open`.
        version: As for `open`.
        log_requests: As for `open`.
        fleet: As for `open`.
        ask_store: As for `open`.

    Returns:
        The segment: a new one with each call.

    Raises:
        DeclarationError: The declaration is invalid.
        SegmentError: There is no room, or /proc is not mounted, or the declaration has a checkpoint.
    """
    return Segment(
        None,
        declaration(config, participants=participants, lock=lock, version=version, fleet=fleet),
        strict=strict,
        lock_timeout=lock_timeout,
        clock=clock,
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
    """Opens the segment that a pickle names, or returns the one that this process already has open.

    Args:
        path: The file.
        strict: As for `open`.
        lock_timeout: As for `open`.
        trust_any_owner: As for `open`.
        log_requests: As for `open`. Pickles of older versions lack it.
        ask_store: As for `open`. Pickles of older versions lack it.

    Returns:
        The segment.
    """
    options = OpeningOptions(strict, lock_timeout, trust_any_owner, log_requests, ask_store)
    with _opening:
        segment = _opened.get((path, options))
    if segment is not None and not segment.closed and segment._file == _file_at(path):
        return segment
    segment = open(path, **options._asdict())
    _arrived.append(segment)
    return segment


def open_with(segment: Segment, name: str, path: str | os.PathLike[str], clock: VirtualClock | None) -> Segment:
    """Creates another segment with one set of an open segment, declared as it is there.

    Args:
        segment: The segment.
        name: The set.
        path: The file of the other one.
        clock: The clock that the other one follows; None for real time.

    Returns:
        The other one, opened with the same options. It neither asks a store nor writes checkpoints.
    """
    declared = segment.declaration()
    declared["set"] = [each for each in declared["set"] if each["name"] == name]
    declared["segment"] = {
        field: each for field, each in declared["segment"].items() if field not in ("path", "checkpoint", "version")
    }
    options = segment._options._replace(ask_store=False)
    return Segment(path, declaration(declared), clock=clock, **options._asdict())


def _file_at(path: str) -> tuple[tuple[int, int], ...] | None:
    """The identity of the file at a path, or of all files in a directory with a file for each set.

    It tells whether the segment, or one of its sets, was removed and another is in its place.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return ((status.st_dev, status.st_ino),)
        with os.scandir(path) as files:
            return tuple(sorted((status.st_dev, file.inode()) for file in files if not file.name.startswith(".")))
    except OSError:
        return None
