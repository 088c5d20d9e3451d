//! What the lock of a shard says to those who only look: all that is asked of a lock without taking it.

use crate::shm::layout::records::SetControl;

/// A lock, as it stood for an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockState {
    /// The thread that holds it, by its id in the segment's PID namespace.
    pub(crate) holder: Option<u32>,
    /// Its holder died, and no process has taken it since: the next one that does sets right what was left.
    pub(crate) owner_died: bool,
    /// It can never be taken again as it is.
    pub(crate) is_lost: bool,
}

impl LockState {
    pub(crate) fn of(control: &SetControl) -> Self {
        let word = control.lock.word();
        Self {
            holder: word.holder,
            owner_died: word.owner_died,
            is_lost: control.lock.is_unrecoverable(),
        }
    }
}
