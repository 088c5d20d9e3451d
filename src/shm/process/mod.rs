//! Processes: which of them participate in a segment, and which are alive.

pub(super) mod attachments;
pub(crate) mod background_thread;
pub(crate) mod cold_start;
mod ending;
pub(crate) mod fork_identity;
pub(crate) mod host;
pub(crate) mod image_lock;
pub(crate) mod participant;
pub(crate) mod process_identity;
pub(crate) mod same_place;
pub(crate) mod shard_locks;

#[cfg(test)]
mod participant_tests;
