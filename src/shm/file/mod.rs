//! The file: creating it, attaching to it, mapping and locking it, and removing it.

pub(crate) mod attach;
pub(crate) mod creation;
pub(crate) mod descriptor;
pub(crate) mod file_lock;
pub(crate) mod file_system;
pub(crate) mod lasting_locks;
pub(crate) mod lock_owners;
pub(crate) mod memory_file;
pub(crate) mod region;
pub(crate) mod removal;
pub(crate) mod remove;
mod room;
pub(crate) mod segment_file;
pub(crate) mod set_directory;
pub(crate) mod verified;
