//! Creating the file of an anonymous segment.

use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create, readlink};
use rustix::io::Errno;

use crate::error::{Error, OpenError};
use crate::shm::file::descriptor::above_standard_streams;
use crate::shm::file::memory_file::{NAME, SEALS};
use crate::shm::file::segment_file::io_error;

/// Seals the file of an anonymous segment, once it has its size.
pub(super) fn seal(file: &File, path: &Path) -> Result<(), Error> {
    fcntl_add_seals(file, SEALS).map_err(|errno| io_error("seal", path, errno.into()))
}

/// Makes an empty file. Returns it, and the path in `/proc` by which other processes reach it as long as this one has
/// it open.
pub(super) fn memory_file(mode: u32) -> Result<(File, PathBuf), Error> {
    let failed = |errno: Errno| io_error("make", Path::new(NAME), errno.into());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A system may forbid executable memfds, so ask for one that is not. Kernels before 6.3 do not know the flag.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::file::memory_file::is_anonymous;

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
