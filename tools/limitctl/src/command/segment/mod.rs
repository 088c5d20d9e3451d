//! Verbs about a segment as a file, one per file.

pub mod checkpoint;
pub mod create;
mod declared;
pub mod list;
pub mod recover;
pub mod remove;
