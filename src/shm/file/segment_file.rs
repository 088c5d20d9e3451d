//! A segment's file: opening it, the attach lock, and the errors of both.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess, getegid, geteuid};

use super::descriptor::{FileIdentity, above_standard_streams, open_number};
use super::lock_owners::{locked_by_reader, owners};
use super::memory_file::{is_anonymous, is_descriptor, needs_a_path};
use super::region::OutOfRegion;
use crate::error::{Error, OpenError, SegmentError, attaching_processes};
use crate::shm::file::file_lock::{ByteRange, try_lock, unlock};
use crate::shm::layout::records::MAGIC;

/// How long to wait for another process that is attaching.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait before saying so.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Actions of one system call each, which a filter may forbid.
pub(crate) const EXAMINE_FILE_SYSTEM: &str = "ask for the file system of";
pub(crate) const GET_RANDOM_BYTES: &str = "get random bytes for";
pub(crate) const ALLOCATE: &str = "allocate";
pub(crate) const PUBLISH: &str = "publish";

/// The attach lock of a segment, held until dropped.
#[derive(Debug)]
pub(crate) struct AttachLock<'a> {
    file: &'a File,
}

impl<'a> AttachLock<'a> {
    /// Waits, up to a bound, until no other process is attaching.
    pub(crate) fn take(file: &'a File, path: &Path) -> Result<Self, Error> {
        Self::take_telling(file, path, &|_| ())
    }

    /// Like [`take`](Self::take), but after a second of waiting it calls `tell`, once, with what it is waiting for.
    pub(crate) fn take_telling(file: &'a File, path: &Path, tell: &dyn Fn(&str)) -> Result<Self, Error> {
        let start = Instant::now();
        let deadline = start + ATTACH_TIMEOUT;
        let mut is_told = false;
        loop {
            match try_lock(file.as_fd(), ByteRange::ATTACH) {
                Ok(true) => return Ok(Self { file }),
                Ok(false) if Instant::now() < deadline => {
                    if !is_told && start.elapsed() >= TELL_AFTER {
                        is_told = true;
                        tell(&waiting_for(file, path));
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                Ok(false) => {
                    return Err(
                        locked_by_reader(file, ByteRange::ATTACH, path).unwrap_or_else(|| {
                            Error::Open(OpenError::AttachStuck {
                                path: path.to_owned(),
                                processes: owners(file, ByteRange::ATTACH),
                            })
                        }),
                    );
                }
                Err(errno) => return Err(io_error("lock", path, errno.into())),
            }
        }
    }
}

/// What a process that opens a segment waits for.
fn waiting_for(file: &File, path: &Path) -> String {
    let by = attaching_processes(&owners(file, ByteRange::ATTACH));
    format!(
        "{} is being created or attached by {by}: waiting until that is done, for {} s at most",
        path.display(),
        ATTACH_TIMEOUT.as_secs()
    )
}

impl Drop for AttachLock<'_> {
    fn drop(&mut self) {
        // Cannot fail for a lock that is held; and closing the file would release it as well.
        let _ = unlock(self.file.as_fd(), ByteRange::ATTACH);
    }
}

/// Opens a segment file for reading and writing. Never creates, never waits for a pipe, and never follows a link,
/// except that of a descriptor to an anonymous segment.
pub(crate) fn open_for_writing(path: &Path) -> Result<File, Error> {
    open(path, OpenOptions::new().read(true).write(true))
}

/// Like [`open_for_writing`], but for reading only.
pub(crate) fn open_for_reading(path: &Path) -> Result<File, Error> {
    open(path, OpenOptions::new().read(true))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    if is_descriptor(path) {
        return open_descriptor(path, options);
    }
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT) => Error::Open(OpenError::NotFound {
                path: path.to_owned(),
            }),
            Some(Errno::ELOOP) => untrusted(path, "it is a symbolic link; name the file itself"),
            Some(Errno::EISDIR | Errno::ENXIO) => not_regular(path),
            _ => io_error("open", path, source),
        })?;
    above_standard_streams(file).map_err(|errno| io_error("open", path, errno.into()))
}

/// Opens what a path in `/proc` leads to, if that is an anonymous segment.
fn open_descriptor(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    let gone = || {
        needs_a_path(
            path,
            "no process has it open as that descriptor, or none does any more",
        )
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => gone(),
        _ => io_error("open", path, source),
    };
    // Before it is opened: opening a device may have side effects.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(not_regular(path));
    }
    let file = options
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(failed)?;
    if !is_anonymous(&file) {
        return Err(untrusted(
            path,
            "it is a descriptor of a file; name the file itself",
        ));
    }
    above_standard_streams(file).map_err(|errno| io_error("open", path, errno.into()))
}

/// Opens a segment file again, as a new open file. Uses the descriptor, wherever the file has moved and whatever the
/// path leads to by now; or the path, if the descriptor was closed or there is no `/proc`.
///
/// # Errors
///
/// [`OpenError::Moved`] if neither leads to it.
pub(crate) fn open_again(number: RawFd, path: &Path, expected: FileIdentity) -> Result<File, Error> {
    let failed = |errno: Errno| io_error("open", path, errno.into());
    let source = match open_number(number, expected) {
        Ok(file) => return above_standard_streams(file).map_err(failed),
        Err(source) => source,
    };
    match open_for_writing(path) {
        Ok(file) if identity(&file, path)? == expected => Ok(file),
        Ok(_) | Err(Error::Open(OpenError::NotFound { .. } | OpenError::Untrusted { .. })) => {
            let path = path.to_owned();
            Err(Error::Open(OpenError::Moved { path, source }))
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn identity(file: &File, path: &Path) -> Result<FileIdentity, Error> {
    FileIdentity::of(file).map_err(|errno| io_error("examine", path, errno.into()))
}

pub(super) fn untrusted(path: &Path, why: impl Into<String>) -> Error {
    Error::Open(OpenError::Untrusted {
        path: path.to_owned(),
        why: why.into(),
    })
}

pub(super) fn not_regular(path: &Path) -> Error {
    untrusted(path, "it is not a regular file")
}

/// The first eight bytes of a file, where a segment has its magic number; zeros beyond the end of the file.
pub(crate) fn start_of(file: &File, path: &Path) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, 0)
        .map_err(|source| io_error("read", path, source))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Whether a file begins with a segment's magic number.
pub(crate) fn is_segment(path: &Path) -> Result<bool, Error> {
    let file = open_for_reading(path)?;
    Ok(start_of(&file, path)? == MAGIC)
}

pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    if let Some(call) = forbidden_call(action, &source) {
        return Error::Open(OpenError::CallForbidden {
            action,
            call,
            path,
            source,
        });
    }
    match explain(&path, &source) {
        Some(why) => Error::Open(OpenError::Denied {
            action,
            path,
            why,
            source,
        }),
        None => match no_place(&path, &source) {
            Some(why) => Error::Open(OpenError::NoPlace {
                action,
                path,
                why,
                source,
            }),
            None => Error::Open(OpenError::Io { action, path, source }),
        },
    }
}

/// Why a file cannot be at a path, and what to do; `None` for other errors.
fn no_place(path: &Path, source: &io::Error) -> Option<String> {
    match Errno::from_raw(source.raw_os_error()?) {
        Errno::EROFS => Some(
            "its file system is mounted read-only here, and every process that uses limits writes to their file: mount it for \
             writing (a volume of a container without `:ro`), or give a path in /dev/shm"
                .to_owned(),
        ),
        Errno::ENOENT => {
            let missing = path.ancestors().skip(1).filter(|directory| {
                fs::metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            });
            let missing = missing.last()?;
            Some(if missing == Path::new("/dev/shm") {
                "this system has no /dev/shm, as in AWS Lambda: give a path on a local file system, such as /tmp, which the \
                 processes of one sandbox share; in a chroot or a container, mount a tmpfs there"
                    .to_owned()
            } else {
                format!(
                    "there is no directory {}: create it first, for the user of these processes, or give another path",
                    missing.display()
                )
            })
        }
        _ => None,
    }
}

/// The system call that a filter forbids; `None` for errors of the system itself, which fails none of these calls
/// with `EPERM` or `ENOSYS`.
fn forbidden_call(action: &str, source: &io::Error) -> Option<&'static str> {
    let errno = Errno::from_raw(source.raw_os_error()?);
    if !matches!(errno, Errno::EPERM | Errno::ENOSYS) {
        return None;
    }
    match action {
        EXAMINE_FILE_SYSTEM => Some("fstatfs"),
        GET_RANDOM_BYTES => Some("getrandom"),
        ALLOCATE => Some("fallocate"),
        // A directory that is marked as immutable answers EPERM as well, but nothing could be built in it.
        PUBLISH => Some("renameat2"),
        _ => None,
    }
}

/// The directory or file that is not accessible, its owner, and the user of this process; `None` for other errors.
fn explain(path: &Path, source: &io::Error) -> Option<String> {
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
        "{} belongs to user {} and group {} with mode {:04o}, and this process runs as user {} and group {}",
        obstacle.display(),
        metadata.uid(),
        metadata.gid(),
        metadata.mode() & 0o7777,
        geteuid(),
        getegid(),
    ))
}

pub(crate) fn damaged(path: &Path, place: OutOfRegion) -> Error {
    Error::Segment(SegmentError::Damaged {
        path: PathBuf::from(path),
        what: format!("{} bytes at {} lie outside the file", place.size, place.offset),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_directory_that_is_missing_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("missing");
        let path = missing.join("below").join("limits");
        let not_found = || io::Error::from(Errno::ENOENT);
        let Error::Open(OpenError::NoPlace { why, .. }) = io_error("create", &path, not_found()) else {
            panic!("no directory is missing");
        };
        assert!(
            why.starts_with(&format!("there is no directory {}: ", missing.display())),
            "{why}"
        );
        let beside = io_error("create", &directory.path().join("limits"), not_found());
        assert!(matches!(beside, Error::Open(OpenError::Io { .. })), "{beside}");
    }

    #[test]
    fn a_file_system_that_is_mounted_read_only_is_no_place() {
        let error = io_error("open", Path::new("/limits"), Errno::EROFS.into());
        assert!(error.to_string().contains("mounted read-only here"), "{error}");
    }
}
