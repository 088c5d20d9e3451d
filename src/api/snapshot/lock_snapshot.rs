//! The state of a lock in a snapshot.

use serde::Serialize;

use crate::shm::process::shard_locks::LockState;

/// The state of a lock, according to its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockSnapshot {
    /// The process that holds it, if any, and if the process can be named.
    pub holder_pid: Option<u32>,
    /// The PID namespace of `holder_pid`, if it is not the caller's: see [`ProcessId`](crate::snapshot::ProcessId).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_namespace: Option<u64>,
    /// The thread that holds it, if the lock is a [robust mutex](crate::declare::LockKind::RobustMutex).
    pub holder_thread: Option<u32>,
    /// Whether its holder died and nobody has taken it since.
    pub owner_died: bool,
}

impl LockSnapshot {
    pub(super) const FREE: Self = Self {
        holder_pid: None,
        holder_namespace: None,
        holder_thread: None,
        owner_died: false,
    };

    pub(super) fn of(state: LockState) -> Self {
        let process = state.holder.and_then(|holder| holder.process);
        Self {
            holder_pid: process.and_then(|process| process.pid.try_into().ok()),
            holder_namespace: process.and_then(|process| process.namespace),
            holder_thread: state.holder.and_then(|holder| holder.thread),
            owner_died: state.owner_died,
        }
    }

    /// Whether a live process holds it.
    pub fn is_held(&self) -> bool {
        self.holder_pid.is_some() || self.holder_thread.is_some()
    }
}
