//! Verbs that only look, one per file.

pub mod doctor;
pub mod export;
mod file_output;
pub mod inspect;
pub mod keys;
pub mod serve;
pub mod show;
pub mod top;
pub mod watch;
