//! Why a file is not to be had: whose it is, or the directory on the way to it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess, getegid, geteuid};

/// What the system's refusal is about, and as whom it was asked; none where the error is another.
pub(in crate::shm) fn explain(path: &Path, source: &io::Error) -> Option<String> {
    if source.raw_os_error() != Some(Errno::EACCES as i32) {
        return None;
    }
    let mut directories: Vec<&Path> = path.ancestors().skip(1).collect();
    directories.reverse();
    let closed = directories
        .iter()
        .find(|directory| eaccess(**directory, AccessFlags::X_OK) == Err(Errno::EACCES));
    let obstacle = match closed {
        Some(directory) => directory,
        None if fs::symlink_metadata(path).is_ok() => path,
        None => path.parent()?,
    };
    let metadata = fs::symlink_metadata(obstacle).ok()?;
    Some(format!(
        "{} belongs to user {} and group {} with mode {:04o}, and this process is of user {} and group {}",
        obstacle.display(),
        metadata.uid(),
        metadata.gid(),
        metadata.mode() & 0o7777,
        geteuid(),
        getegid(),
    ))
}
