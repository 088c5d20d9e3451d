//! The shared-memory ground: bytes, files, locks and liveness. It knows no limits.
//!
//! The files of this folder that opt in to `unsafe_code` are the whole audit list of the library:
//! `region.rs` (the mapping), `layout.rs` (the marker for records), `robust_mutex.rs` (pthread calls) and
//! `fork_identity.rs` (the page that a fork wipes),
//! `descriptor.rs` (a file number that others may close).

pub(crate) mod attach;
pub(crate) mod create;
pub(crate) mod descriptor;
pub(crate) mod file_lock;
pub(crate) mod fork_identity;
pub(crate) mod geometry;
pub(crate) mod host;
pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod participant;
pub(crate) mod region;
pub(crate) mod remove;
pub(crate) mod robust_mutex;
