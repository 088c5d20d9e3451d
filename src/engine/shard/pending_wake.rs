//! Whom an operation wakes once it has released the lock.

use std::sync::atomic::AtomicU64;

/// In a ticket's `request`: its owner sleeps on the process futex of its participant, not on the ticket's own waiter
/// futex.
pub(crate) const BY_PROCESS_FUTEX: u64 = 1 << 16;

/// A futex that was advanced, and the owner to wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingWake<'a> {
    pub(in crate::engine) futex: &'a AtomicU64,
    pub(in crate::engine) owner: u64,
    pub(in crate::engine) is_process_futex: bool,
}
