//! Segments without a path: a file that lives in memory, for as long as anybody has it open or mapped.
//!
//! It has no name, as a deleted file has none. It is told from one by its seals, which also keep it from being truncated
//! under its users. Who wants to open it does so through `/proc`, as each process must that takes a lock of its own.

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create, readlink};
use rustix::io::Errno;

use super::descriptor::above_standard_streams;
use super::segment_file::io_error;
use crate::error::{Error, OpenError};

/// No file of a file system can have these: memfds alone may be sealed.
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// What it is called before it has a path, and what its link in `/proc` says.
pub(crate) const NAME: &str = "anonymous segment";

/// Whether a file is that of an anonymous segment.
pub(crate) fn is_anonymous(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// Seals the file of an anonymous segment, which has its size by now.
pub(super) fn seal(file: &File, path: &Path) -> Result<(), Error> {
    fcntl_add_seals(file, SEALS).map_err(|errno| io_error("seal", path, errno.into()))
}

/// Makes an empty file, and says by which path in `/proc` other processes reach it for as long as this one has it open.
pub(super) fn memory_file(mode: u32) -> Result<(File, PathBuf), Error> {
    let failed = |errno: Errno| io_error("make", Path::new(NAME), errno.into());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where the system forbids memfds that can be executed, it has to be asked for one that cannot. Older kernels (before
    // 6.3) do not know how to be asked.
    let file = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(NAME, flags),
        file => file,
    };
    let file = above_standard_streams(File::from(file.map_err(failed)?))
        .map_err(|errno| io_error("make", Path::new(NAME), errno.into()))?;
    let path = path_in_proc(&file)?;
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(|source| io_error("set the mode of", &path, source))?;
    Ok((file, path))
}

fn path_in_proc(file: &File) -> Result<PathBuf, Error> {
    // Not by getpid: /proc may be that of another PID namespace.
    let process = readlink("/proc/self", Vec::new());
    let process = process.ok().and_then(|process| process.into_string().ok());
    let path = process.map(|process| PathBuf::from(format!("/proc/{process}/fd/{}", file.as_raw_fd())));
    path.filter(|path| path.exists()).ok_or_else(|| {
        Error::Open(OpenError::Anonymous {
            path: PathBuf::from(NAME),
            why: "its processes open it through /proc, which is not mounted here: mount it, or give the segment a path",
        })
    })
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

/// The error of what only a segment with a path can do.
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

    #[test]
    fn a_file_that_was_deleted_is_not_taken_for_an_anonymous_one() {
        let deleted = tempfile::tempfile_in("/dev/shm").expect("a file");
        assert!(!is_anonymous(&deleted));
        let (file, path) = memory_file(0o600).expect("a file");
        assert!(!is_anonymous(&file), "it is not whole yet");
        seal(&file, &path).expect("our own");
        assert!(is_anonymous(&file));
    }
}
