//! Who holds a lock, for people.

use crate::error::ProcessId;

/// Who holds a lock, as far as its word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockHolder {
    /// `None` where the process cannot be named.
    pub(crate) process: Option<ProcessId>,
    /// The thread id, where the lock is one of threads.
    pub(crate) thread: Option<u32>,
}

impl LockHolder {
    /// The process. A thread that is gone names none, but its number is all there is to say.
    pub(crate) fn named(self) -> Option<ProcessId> {
        self.process
            .or_else(|| self.thread.map(ProcessId::of_own_namespace))
    }
}
