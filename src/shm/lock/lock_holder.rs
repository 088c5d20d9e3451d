//! The holder of a lock, for messages.

use crate::error::ProcessId;

/// The holder of a lock, as far as its word tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockHolder {
    /// `None` if the process cannot be named.
    pub(crate) process: Option<ProcessId>,
    /// The thread id, if threads own the lock.
    pub(crate) thread: Option<u32>,
}

impl LockHolder {
    /// The process. If the thread is gone, its number is all there is to report.
    pub(crate) fn named(self) -> Option<ProcessId> {
        self.process
            .or_else(|| self.thread.map(ProcessId::of_own_namespace))
    }
}
