"""Exceptions, as a tree under `Error`. A refusal is not an error, unless it ends a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shmlimit._native import Refusal


class Error(Exception):
    """The base of all errors. The message says what is wrong, where, and what to do."""

    def __str__(self) -> str:
        # Some built-in exceptions that subclasses also derive from format their arguments differently.
        return str(self.args[0]) if self.args else ""


class DeclarationError(Error, ValueError):
    """The declaration is malformed or has an invalid field: the message says which, and what to write."""


class ConfigMismatch(Error, ValueError):
    """The segment exists with another declaration, which cannot or must not be changed in place. Nothing was changed.

    Attributes:
        path: The file.
        differences: Each difference, in words: the declared value, and the one in the segment.
        remedy: What to do, with the commands.
    """

    path: str
    differences: list[str]
    remedy: str = ""


class RequestError(Error, ValueError):
    """The request can never be met, however long it waits. Nothing was taken."""


class CostRequired(RequestError):
    """A rate limit has no default cost, and the request names none."""


class NeverAdmissible(RequestError):
    """The cost is more than the limit can ever admit at once.

    Attributes:
        limit: The limit.
    """

    limit: str


class InvalidAmount(RequestError):
    """An amount is not a whole number of the limit's units."""


class InvalidKey(RequestError):
    """The request names a key that cannot be used, no key although the set is keyed, or a key although it is not.

    A key cannot be used if it is empty or too long, or if it is not an address and the set counts networks.
    """


class UnknownName(Error, KeyError):
    """The segment has no set of that name, or the set no limit or tier."""


class UnknownLimit(UnknownName):
    """The set has no limit of that name."""


class PermitError(Error, RuntimeError):
    """The permit cannot be used like this any more, or it belongs to the process that forked this one."""


class AlreadySettled(PermitError):
    """The permit was already settled."""


class AlreadyReleased(PermitError):
    """The permit was already released."""


class Reclaimed(PermitError):
    """The lease ran out, and there is nothing left to renew. Releasing such a permit raises nothing."""


class SegmentError(Error, OSError):
    """The segment's file cannot be used, or not from here.

    Attributes:
        path: The file, if known.
    """

    path: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # `errno` is neither in the arguments nor in `vars`.
        return type(self), self.args, {**vars(self), "errno": self.errno}


class NotFound(SegmentError, FileNotFoundError):
    """No file exists at the path."""


class PermissionDenied(SegmentError, PermissionError):
    """The system denies this process the file, or the file is not trusted: someone else may have planted it."""


class SegmentClosed(SegmentError, ValueError):
    """This segment object was closed."""


class NoSpace(SegmentError):
    """The file system, the memory cgroup or the file size limit (`ulimit -f`) leaves no room. Nothing was created."""


class InvalidSegment(SegmentError):
    """The file is not a segment, or not a checkpoint, that this build can use.

    It is another kind of file, has another layout, or is damaged beyond repair.
    """


class InUse(SegmentError):
    """Processes are attached to the segment to be removed.

    Attributes:
        pids: The processes.
        pid_namespaces: The PID namespace of each of those ids, by its inode; None if it is the caller's.
    """

    pids: list[int]
    pid_namespaces: list[int | None]


class Removed(SegmentError):
    """The segment must no longer be used: open its path again.

    It was retired (`limitctl remove`), its file was deleted, or another segment is at its path. The `successor` of a
    segment or a handle is the one that is there now. Permits that are out can still be settled and released.

    Attributes:
        path: The file.
        cause: `"retired"`, `"deleted"` or `"replaced"`.
    """

    path: str
    cause: Literal["retired", "deleted", "replaced"]


class LockStuck(SegmentError):
    """A lock is held by a process that is alive and does not release it.

    The process may be stopped, or it has only read access and holds a file lock that keeps others from opening it.

    Attributes:
        pid: The process, if the system says.
        pid_namespace: The PID namespace of that id, by its inode; None if it is the caller's.
    """

    pid: int | None = None
    pid_namespace: int | None = None


class Refused(Error):
    """A wait ended without a permit: the queue or the table is full, or the time was up.

    Attributes:
        refusal: The refusal; None if a program raised this with a text of its own.
        set_name: The set.
        binding: The limit that refused; None if a table was full.
        reason: Why, in one word.
        retry_after: Seconds after which the request would be admitted if nobody else took anything; None if time alone
            does not help.
    """

    def __init__(self, refusal: Refusal | str) -> None:
        super().__init__(str(refusal))
        described = None if isinstance(refusal, str) else refusal
        self.refusal = described
        self.set_name: str | None = described.set_name if described is not None else None
        self.binding: str | None = described.binding if described is not None else None
        self.reason: str | None = described.reason if described is not None else None
        self.retry_after: float | None = described.retry_after if described is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),), vars(self)


class AcquireTimeout(Refused, TimeoutError):
    """The time was up before the request could be met. The message says what refused it last."""

    def __init__(self, refusal: Refusal | str) -> None:
        super().__init__(refusal)
        if self.refusal is not None:
            self.args = (f"time was up: {refusal}",)


class BlockingAcquireWarning(RuntimeWarning):
    """A blocking acquire waits in a thread that runs an event loop, and so stops all of its tasks."""


class UnknownLimitWarning(RuntimeWarning):
    """A request named a limit that the set does not have; the limit was skipped."""
