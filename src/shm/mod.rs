//! The shared-memory layer: bytes, files, locks and liveness. It knows no limits.
//!
//! The files of this directory that opt in to `unsafe_code` are the whole audit list of the library:
//!
//! - `time/clock.rs` (a system call that cannot afford a wrapper)
//! - `time/processor_counter.rs` (the instruction that reads the counter, and whether it may be used)
//! - `file/descriptor.rs` (a file number that others may close)
//! - `file/file_system.rs` (a system call without a wrapper)
//! - `process/fork_identity.rs` (the page that a fork wipes)
//! - `wake/futex.rs` (system calls on one half of a 64-bit word)
//! - `lock/guard.rs` (the end of a lock that is held)
//! - `process/image_lock.rs` (the page that keeps a lock)
//! - `layout/records.rs` (the marker for records)
//! - `layout/prefetch.rs` (a processor's instruction)
//! - `process/process_identity.rs` (the kernel's random bytes)
//! - `file/region.rs` (the mapping)
//! - `probes.rs` (what the probes expand to)
//! - `lock/robust_mutex.rs` (pthread calls)
//!
//! `tests/repository/unsafe_code.rs` holds the list and the files together.

pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod probes;
pub(crate) mod process;
pub(crate) mod time;
pub(crate) mod wake;
