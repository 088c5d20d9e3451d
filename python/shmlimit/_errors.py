"""What can go wrong, as a tree under `Error`. What the limits say is no error, unless a wait for them ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shmlimit._native import Refusal


class Error(Exception):
    """Everything that can go wrong. The message names what was wrong, where, and what to do."""

    def __str__(self) -> str:
        # Some of the built-in exceptions that others are as well show their arguments in ways of their own.
        return str(self.args[0]) if self.args else ""


class DeclarationError(Error, ValueError):
    """A declaration is not one, or has a field that cannot be: the message says which, and what to write."""


class ConfigMismatch(Error, ValueError):
    """The segment exists with another declaration.

    Attributes:
        path: The file.
        differences: Each difference, in words: the declared value, and that in the segment.
        remedy: What to do, with the commands.
    """

    path: str
    differences: list[str]
    remedy: str = ""


class CannotApply(ConfigMismatch):
    """What differs from the live segment cannot change in place. Nothing was changed."""


class RequestError(Error, ValueError):
    """The request can never be met, however long one waits. Nothing was taken."""


class CostRequired(RequestError):
    """A rate limit has no default cost, and the request names nothing."""


class NeverAdmissible(RequestError):
    """The cost is more than the limit can ever admit at once.

    Attributes:
        limit: The limit.
    """

    limit: str


class InvalidAmount(RequestError):
    """An amount is no whole number of the limit's units."""


class KeyRequired(RequestError):
    """Each key of the set has limits of its own, and none was named; or what was named is no address."""


class NotKeyed(RequestError):
    """A key was named, and the set is not keyed."""


class InvalidKey(RequestError):
    """A key is empty or too long."""


class MustBeHeld(RequestError):
    """What is held until it is given back needs a permit, which a check does not give."""


class UnknownName(Error, KeyError):
    """There is nothing of that name."""


class UnknownSet(UnknownName):
    """The segment has no set of that name."""


class UnknownLimit(UnknownName):
    """The set has no limit of that name."""


class UnknownTier(UnknownName):
    """The set has no tier of that name."""


class NotABudget(RequestError):
    """Only a budget can be debited, and the limit is of another kind: settle the permit in place of that."""


class PermitError(Error, RuntimeError):
    """A permit cannot be used like this any more."""


class AlreadySettled(PermitError):
    """The permit was settled before."""


class AlreadyReleased(PermitError):
    """The permit was released before."""


class Reclaimed(PermitError):
    """The lease ran out, and there is nothing left to renew. Releasing such a permit raises nothing."""


class InheritedPermit(PermitError):
    """The permit is that of the process that forked this one."""


class SegmentError(Error, OSError):
    """The segment's file cannot be used.

    Attributes:
        path: The file, where it is known.
    """

    path: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The number is kept where pickles do not look.
        return type(self), self.args, {**vars(self), "errno": self.errno}


class NotFound(SegmentError, FileNotFoundError):
    """There is no file at the path."""


class PermissionDenied(SegmentError, PermissionError):
    """The system does not let this process use the file: it belongs to another user, for instance."""


class SegmentClosed(SegmentError, ValueError):
    """This object of the segment was closed."""


class AlreadyExists(SegmentError, FileExistsError):
    """There is a file at the path already."""


class NoSpace(SegmentError):
    """The file system, the memory cgroup or the largest file size (`ulimit -f`) has no room. Nothing was created."""


class NotACheckpoint(SegmentError):
    """The file that a checkpoint is to be written to, or created from, is not empty and not one of checkpoints."""


class NotASegment(SegmentError):
    """The file is not a segment at all."""


class Incompatible(SegmentError):
    """The segment was made by a build whose layout differs."""


class ForeignNamespace(SegmentError):
    """The segment is in use in another PID or time namespace, or comes from another boot."""


class Damaged(SegmentError):
    """Something in the file cannot be right."""


class Untrusted(SegmentError, PermissionError):
    """The file must not be trusted: someone else may have planted it."""


class LocksNotKept(SegmentError):
    """The file system gives up the lock by which a process shows that it lives, as an overlay does.

    A container's own files are on one: use `/dev/shm` or a volume.
    """


class InUse(SegmentError):
    """Processes are attached to the segment that is to be removed.

    Attributes:
        pids: The processes.
        pid_namespaces: The PID namespace that each of those ids is of, by its inode, where the segment is declared with
            `lock="slot"`; otherwise None for each.
    """

    pids: list[int]
    pid_namespaces: list[int | None]


class Removed(SegmentError):
    """The segment is not to be used any more: open its path again.

    It was retired (`limitctl remove`), its file was deleted, or another segment is at its path. What is there by now is
    the `successor` of a segment or a handle. Permits that are out are settled and released as ever.

    Attributes:
        path: The file.
        cause: `"retired"`, `"deleted"` or `"replaced"`.
    """

    path: str
    cause: Literal["retired", "deleted", "replaced"]


class LockStuck(SegmentError):
    """A lock is held by a process that is alive and does not release it.

    It is stopped, for instance, or it may only read the file and keeps others from opening it.

    Attributes:
        pid: The process, where the system says.
        pid_namespace: The PID namespace that the id is of, by its inode, where the segment is declared with
            `lock="slot"`.
    """

    pid: int | None = None
    pid_namespace: int | None = None


class Poisoned(SegmentError):
    """A recovery could not make sense of a set."""


class TooManyParticipants(SegmentError):
    """Every participant of the segment is a live process: one each, however often it opens the segment.

    Declare more (`participants`) in a new segment, or end some.
    """


class Refused(Error):
    """What was waited for will not come: the queue or the table is full, or time was up.

    Attributes:
        refusal: What the limits said; None where the exception came from another process.
        set_name: The set.
        binding: The limit that bound; None where a table was full.
        reason: Why, in one word.
        retry_after: Seconds after which the request would be admitted if no one else took anything; None where time
            alone does not help.
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
        # A refusal is bound to the segment that this process has open, and stays behind.
        state = {name: value for name, value in vars(self).items() if name != "refusal"}
        return type(self), (str(self),), {**state, "refusal": None}


class AcquireTimeout(Refused, TimeoutError):
    """Time was up before the request could be met. The message says so, and what bound at the end."""

    def __init__(self, refusal: Refusal | str) -> None:
        super().__init__(refusal)
        if self.refusal is not None:
            self.args = (f"time was up: {refusal}",)


class BlockingAcquireWarning(RuntimeWarning):
    """A blocking acquire waits in a thread that runs an event loop, none of whose tasks goes on meanwhile."""


class UnknownLimitWarning(RuntimeWarning):
    """A limit was named that the set does not have; it was skipped."""
