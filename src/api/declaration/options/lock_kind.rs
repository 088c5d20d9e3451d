//! The kinds of locks.

use crate::shm::lock::dispatch;
use crate::words::words;

/// The kind of a segment's locks: the `lock` of a `[segment]`. It cannot be changed in an existing segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// Robust mutexes of the C library. The kernel itself reports the death of a holder, in well under a millisecond.
    /// All processes must be in one PID namespace and use the same C library; others are rejected.
    #[default]
    RobustMutex,
    /// Words that name the holding process, whose [file lock](crate::documentation::layout_specification) shows
    /// whether it is alive. For processes of several PID namespaces and C libraries: containers that share a
    /// directory, or a host with glibc and a container with musl. As fast as robust mutexes while no process dies. A
    /// waiting process has to find out by itself that the holder died, which takes a few milliseconds, and longer if
    /// the dead process had much memory to free.
    Slot,
}

words!(LockKind, "a kind of lock", {
    RobustMutex = "robust",
    Slot = "slot",
});

impl From<LockKind> for dispatch::LockKind {
    fn from(declared: LockKind) -> Self {
        match declared {
            LockKind::RobustMutex => Self::RobustMutex,
            LockKind::Slot => Self::Slot,
        }
    }
}

impl From<dispatch::LockKind> for LockKind {
    fn from(kind: dispatch::LockKind) -> Self {
        match kind {
            dispatch::LockKind::RobustMutex => Self::RobustMutex,
            dispatch::LockKind::Slot => Self::Slot,
        }
    }
}
