//! Processes: who takes part in a segment, and who lives.

pub(crate) mod background_thread;
pub(crate) mod cold_start;
pub(crate) mod fork_identity;
pub(crate) mod host;
pub(crate) mod participant;
pub(crate) mod process_identity;
