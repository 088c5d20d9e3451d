//! The shared-memory layer: bytes, files, locks and liveness. It knows nothing of limits.
//!
//! The files in this directory that opt in to `unsafe_code` are the library's whole audit list:
//!
//! - `time/clock.rs` (a system call for which a wrapper costs too much)
//! - `time/processor_counter.rs` (the instruction that reads the counter, and whether it may be used)
//! - `file/descriptor.rs` (a file number that others may close)
//! - `file/file_system.rs` (a system call without a wrapper)
//! - `process/fork_identity.rs` (the page that a fork wipes)
//! - `wake/futex.rs` (system calls on one half of a 64-bit word)
//! - `lock/guard.rs` (releasing a lock)
//! - `process/image_lock.rs` (the page that keeps a lock)
//! - `layout/records.rs` (the marker for records)
//! - `layout/prefetch.rs` (a processor instruction)
//! - `process/process_identity.rs` (the kernel's random bytes)
//! - `file/region.rs` (the mapping)
//! - `probes.rs` (what the probes expand to)
//! - `lock/robust_mutex.rs` (pthread calls)
//!
//! `tests/repository/unsafe_code.rs` checks the list against the files.

pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod probes;
pub(crate) mod process;
pub(crate) mod time;
pub(crate) mod wake;
