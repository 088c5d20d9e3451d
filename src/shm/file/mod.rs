//! The file: creating it, attaching to it, what of it is mapped, and removing it.

pub(crate) mod attach;
pub(crate) mod checkpoint_file;
mod construction;
pub(crate) mod create;
pub(crate) mod descriptor;
pub(crate) mod file_system;
pub(crate) mod region;
pub(crate) mod removal;
pub(crate) mod remove;
pub(crate) mod segment_file;
pub(crate) mod verified;
