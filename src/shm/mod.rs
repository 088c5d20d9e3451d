//! The shared-memory ground: bytes, files, locks and liveness. It knows no limits.
//!
//! The files of this folder that opt in to `unsafe_code` are the whole audit list of the library:
//!
//! - `clock.rs` (a system call that cannot afford a wrapper)
//! - `descriptor.rs` (a file number that others may close)
//! - `file_system.rs` (a system call without a wrapper)
//! - `fork_identity.rs` (the page that a fork wipes)
//! - `futex.rs` (system calls on one half of a 64-bit word)
//! - `image_lock.rs` (the page that keeps a lock)
//! - `layout.rs` (the marker for records)
//! - `prefetch.rs` (a processor's instruction)
//! - `process_identity.rs` (the kernel's random bytes)
//! - `region.rs` (the mapping)
//! - `robust_mutex.rs` (pthread calls)
//!
//! `tests/unsafe_code.rs` holds the list and the files together.

mod access;
pub(crate) mod attach;
mod attachments;
pub(crate) mod background_thread;
pub(crate) mod clock;
pub(crate) mod cold_start;
pub(crate) mod create;
pub(crate) mod death_watch;
pub(crate) mod definition;
pub(crate) mod descriptor;
pub(crate) mod file_lock;
pub(crate) mod file_system;
pub(crate) mod fork_identity;
pub(crate) mod futex;
pub(crate) mod geometry;
pub(crate) mod host;
pub(crate) mod image_lock;
pub(crate) mod journal;
pub(crate) mod label;
pub(crate) mod layout;
#[cfg(test)]
mod layout_document;
pub(crate) mod participant;
pub(crate) mod prefetch;
pub(crate) mod process_identity;
pub(crate) mod region;
pub(crate) mod removal;
pub(crate) mod remove;
pub(crate) mod robust_mutex;
pub(crate) mod virtual_clock;
pub(crate) mod wake_list;
