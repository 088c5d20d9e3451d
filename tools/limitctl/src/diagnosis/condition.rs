//! What can be found, and how bad it is. `tools/reference` writes docs/reference/findings.md from this file.

use std::fmt;

use serde::{Serialize, Serializer};
use shmlimit::fleet::StoreProblem;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing needs to be done.
    Note,
    /// Repaired without help at the next use, or may become an error.
    Warning,
    /// The segment, or a part of it, does not work.
    Error,
}

/// What can be found. Each text says what the finding means, and then what to do if that is not to run the command that
/// is printed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// A process that has the lock is stopped, traced, frozen with its cgroup (`docker pause`) or hangs.
    ///
    /// Let the process go on, or end it.
    LockStuck,
    /// A process died with the lock. The next process that uses the set takes it and repairs what was left half done.
    LockOwnerDead,
    /// A process died in the middle of an operation. The next process that uses the set undoes it or carries it to its end.
    HalfDone,
    /// A lock that no process is left to release: it was made without a list of locks, or the file was copied in the middle of
    /// an operation.
    ///
    /// End the attached processes: the first one that attaches afterwards makes the lock anew.
    LockOrphaned,
    /// A lock beyond recovery: its set does not work any more.
    ///
    /// End the attached processes: the first one that attaches afterwards makes the lock anew.
    LockLost,
    /// Counts that do not agree with holds, tickets and keys: more or less may be admitted than the limits say.
    CountsWrong,
    /// Damage that cannot be repaired by itself: the set is refused with `Poisoned`.
    Poisoned,
    /// A process died attached. It is only a note if it held nothing and waited for nothing, as when a signal ends an idle
    /// worker.
    ParticipantDead,
    /// Permits of a dead process. They are given back to the next process that needs them.
    HeldByTheDead,
    /// A place in the queue of a dead process. The process that waits behind it takes it back.
    TicketOfTheDead,
    /// A place in the queue that was given up while another process kept the lock.
    TicketGivenUp,
    /// Permits that were given back while another process kept the lock.
    ///
    /// They are free as soon as any process has the lock: see who keeps it.
    ReturnedUnfinished,
    /// Permits held for longer than their lease: their process hangs, or does not renew them.
    LeaseOver,
    /// A process that holds permits is stopped, traced or frozen with its cgroup.
    ///
    /// Let the process go on, or end it.
    HolderStopped,
    /// A process at the head of a queue, or one that was granted something, is stopped, traced or frozen. It is an error if
    /// others wait behind it.
    ///
    /// Let the process go on, or end it.
    QueueStopped,
    /// The head of a queue could have what it waits for, and does not take it: its process does not run.
    QueueStuck,
    /// A process did not collect what it was granted: it is stopped, or its event loop is blocked, idle or closed.
    ///
    /// Keep the event loop free of blocking calls, and poll or drop every future.
    GrantNotCollected,
    /// No other process can attach.
    ///
    /// Create a segment with more places at another path.
    ParticipantsFull,
    /// From another boot, from a namespace that has ended, or a copy. The next process that opens it starts it cold, and what
    /// was counted stays.
    Cold,
    /// Used by processes of another PID or time namespace: those of this one are refused.
    ///
    /// Examine it there, or let all processes share a namespace.
    ForeignNamespace,
    /// Processes are attached to a file of another boot, or to a copy: others are refused until they end.
    ForeignBoot,
    /// On a file system where live processes would count as dead, such as an overlay.
    ///
    /// Move it to a tmpfs, such as `/dev/shm`.
    LocksNotKept,
    /// A process with read permission keeps others from joining, because it holds a lock on the file.
    ///
    /// Exclude the file from what that program reads, or deny it access.
    LockedByReader,
    /// It is damaged and cannot be opened.
    Damaged,
    /// Its size is not what its header says. Processes that have it open may be killed by SIGBUS.
    WrongSize,
    /// Created by a build with another format, or with another C library.
    OtherFormat,
    /// A file of another program.
    NotASegment,
    /// It was removed. Processes that have it open admit nothing and use what is created at the path next.
    Retired,
    /// In a directory with a file for each set, a file that does not belong to the set it is named after.
    Misplaced,
    /// Others could write to it, or it belongs to another user. It is only a note to users whom the file is not meant for.
    Untrusted,
    /// This user may not open it. It is only a note to users whom the file is not meant for.
    Denied,
    /// It has holes: a change could need space, and its lack would be a bus error.
    Sparse,
    /// On a network file system or the like, where not all processes that open a file share its memory.
    UnsupportedFileSystem,
    /// Mounted read-only. It is only a note if others use it through a mount that is not.
    ReadOnly,
    /// It cannot be opened for another reason, which is given.
    Unusable,
    /// The file system has no room for another segment of this size.
    NoSpace,
    /// It lies on a disk: limits survive a reboot, and an operation may wait for the disk.
    ///
    /// Where latency matters, use a tmpfs.
    OnDisk,
    /// The offsets of a time zone are known for less than a year ahead.
    ///
    /// Run `limitctl apply` on a host whose database of time zones is newer.
    TimeZoneEnds,
    /// The store evicts keys when its memory is used up, and limits with them.
    ///
    /// Set its `maxmemory-policy` to `noeviction`.
    StoreEvicts,
    /// No process asks the store for leases. It is only a note if no process uses the segment, or if the store denies what
    /// they ask and they try again.
    ///
    /// Start one with the client of the store.
    NoDuty,
    /// Leases that run out before any unit is spent, which other hosts cannot have meanwhile.
    ///
    /// Declare a shorter lease.
    LeaseUnused,
    /// The burst of a limit that hosts share is too small for the time that the store takes to answer.
    ///
    /// Declare the burst that is given, or use a store that is nearer.
    LeaseShare,
    /// A cgroup is near its memory limit, and segments on a tmpfs count towards it.
    ///
    /// Raise the limit; that of a container is set where it is started.
    MemoryNearLimit,
    /// Segments need Linux 4.14 or later.
    KernelTooOld,
    /// Before Linux 5.3, waiters learn of a death by looking every 50 ms.
    DeathsArePolled,
    /// Why the store of a limit that hosts share grants nothing, by the problem's name.
    #[serde(untagged, serialize_with = "of_store")]
    Store(StoreProblem),
}

impl Condition {
    /// How bad it can be.
    pub fn severities(self) -> &'static [Severity] {
        use Condition::*;
        use Severity::{Error, Note, Warning};
        match self {
            LockStuck
            | LockOrphaned
            | LockLost
            | CountsWrong
            | Poisoned
            | QueueStuck
            | ParticipantsFull
            | ForeignNamespace
            | ForeignBoot
            | LocksNotKept
            | LockedByReader
            | Damaged
            | WrongSize
            | OtherFormat
            | NotASegment
            | Misplaced
            | Sparse
            | UnsupportedFileSystem
            | Unusable
            | KernelTooOld => &[Error],
            LockOwnerDead | HalfDone | HeldByTheDead | TicketOfTheDead | TicketGivenUp
            | ReturnedUnfinished | LeaseOver | HolderStopped | GrantNotCollected | Cold | Retired
            | NoSpace | TimeZoneEnds | StoreEvicts | LeaseShare | MemoryNearLimit => &[Warning],
            OnDisk | LeaseUnused | DeathsArePolled => &[Note],
            QueueStopped => &[Error, Warning],
            Untrusted | Denied | ReadOnly => &[Error, Note],
            ParticipantDead | NoDuty => &[Warning, Note],
            Store(_) => &[Error, Warning, Note],
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

fn of_store<S: Serializer>(problem: &StoreProblem, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("store_{problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_printed_as_in_json() {
        for (condition, name) in [
            (Condition::HeldByTheDead, "held_by_the_dead"),
            (Condition::Store(StoreProblem::TimedOut), "store_timed_out"),
        ] {
            assert_eq!(condition.to_string(), name);
            assert_eq!(serde_json::to_value(condition).expect("JSON"), name);
        }
    }
}
