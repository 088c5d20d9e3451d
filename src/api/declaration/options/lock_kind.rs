//! The kinds of locks: two implementations of a process-shared robust mutex.

use crate::shm::lock::dispatch;
use crate::words::words;

/// The kind of a segment's locks: the `lock` of a `[segment]`. It cannot be changed in an existing segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A word that names the holding process, whose [file lock](crate::documentation::layout_specification) shows whether
    /// it is alive. For processes of any PID namespaces and C libraries: containers that share a directory, or a host
    /// with glibc and a container with musl. A waiting process finds out by itself that the holder died, which takes a
    /// few milliseconds. If it cannot look the holder up, because that is in another PID namespace, it takes as long as
    /// the kernel takes to free the memory of the dead process.
    #[default]
    Slot,
    /// The robust mutex of the C library. The kernel itself reports the death of a holder, in well under a millisecond.
    /// All processes must be in one PID namespace and use the same C library; others are rejected.
    RobustMutex,
}

words!(LockKind, "a kind of lock", {
    Slot = "slot",
    RobustMutex = "robust",
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
