//! Segments without a path: a file that lives in memory, for as long as anybody has it open or mapped.
//!
//! Like a deleted file, it has no name; its seals tell the two apart, and keep it from being truncated while it is
//! used. Processes open it through `/proc`, even if they have inherited it: each needs an open file of its own for its
//! locks.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{SealFlags, fcntl_get_seals};

use crate::error::{Error, OpenError};

/// No file of a file system can have these: memfds alone may be sealed.
pub(super) const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// What it is called before it has a path, and what its link in `/proc` says.
pub(crate) const NAME: &str = "anonymous segment";

/// Whether a file is that of an anonymous segment.
pub(crate) fn is_anonymous(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// Whether a path leads to a descriptor of a process.
pub(super) fn is_descriptor(path: &Path) -> bool {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Option<Vec<&str>> = path.components().map(|part| part.as_os_str().to_str()).collect();
    match parts.as_deref() {
        Some(["/", "proc", process, "fd", number]) => {
            is_number(number) && (matches!(*process, "self" | "thread-self") || is_number(process))
        }
        Some(["/", "dev", "fd", number]) => is_number(number),
        _ => false,
    }
}

/// The error for what only a segment with a path can do.
pub(crate) fn needs_a_path(path: &Path, why: &'static str) -> Error {
    let path = path.to_owned();
    Error::Open(OpenError::Anonymous { path, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_descriptors_are_taken_for_such() {
        for path in [
            "/proc/self/fd/3",
            "/proc/4711/fd/12",
            "/proc/thread-self/fd/0",
            "/dev/fd/7",
        ] {
            assert!(is_descriptor(Path::new(path)), "{path}");
        }
        for path in [
            "/proc/self/fd/",
            "/proc/self/fd/x",
            "/proc/x/fd/3",
            "/tmp/proc/1/fd/3",
            "/dev/shm/3",
            "fd/3",
        ] {
            assert!(!is_descriptor(Path::new(path)), "{path}");
        }
    }
}
