//! Verbs that are about a segment as a file: one a file.

pub mod checkpoint;
pub mod create;
mod declared;
pub mod list;
pub mod recover;
pub mod remove;
