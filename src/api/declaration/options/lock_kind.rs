//! What the locks of a segment are.

use crate::shm::lock::dispatch;
use crate::words::words;

/// What the locks of a segment are: the `lock` of a `[segment]`. For good: it cannot be changed in a segment that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// Robust mutexes of the C library. The kernel itself says when a process died that held one, in well under a
    /// millisecond. For processes of one PID namespace, with one C library: others are refused.
    #[default]
    RobustMutex,
    /// Words that name the process that holds them, whose [file lock](crate::documentation::layout_specification) says whether
    /// it lives. For processes of several PID namespaces and C libraries: containers that share a directory, a host with
    /// glibc and a container with musl. As fast while no process dies. A process that waits finds out by itself that one died
    /// that held the lock, which takes it a few milliseconds, and longer where the dead had much memory to be given back.
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
