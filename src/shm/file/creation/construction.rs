//! Files that are built under another name and then moved into place, so that nobody ever sees a partial one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, OpenError};
use crate::shm::file::file_lock::{ByteRange, try_lock};
use crate::shm::file::file_system::FULL;
use crate::shm::file::lock_owners::locked_by_reader;
use crate::shm::file::segment_file::{PUBLISH, io_error, open_for_writing};
use crate::shm::process::host::own_start_time;

/// Ends the name of a segment under construction.
const CONSTRUCTION_SUFFIX: &str = "shmlimit-new";

/// The directory of a file to be made, and the file's name in it.
pub(super) fn place_of(path: &Path) -> Result<(&Path, &OsStr), Error> {
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| {
        io_error(
            "create",
            path,
            io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"),
        )
    })?;
    Ok((directory, name))
}

/// A file under construction; removed on drop.
pub(super) struct Construction {
    path: PathBuf,
}

impl Construction {
    /// Where the file is until it is published.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name.
    ///
    /// # Errors
    ///
    /// [`OpenError::AlreadyExists`] if something else has that name, [`OpenError::Untrusted`] if the file has a name
    /// besides the one that it was built under: whoever gave it that name would keep a name of the segment.
    pub(super) fn publish(self, target: &Path) -> Result<(), Error> {
        let names = self
            .path
            .symlink_metadata()
            .map(|found| found.nlink())
            .map_err(|source| io_error("examine", target, source))?;
        if names > 1 {
            return Err(Error::Open(OpenError::Untrusted {
                path: target.to_owned(),
                why: format!(
                    "somebody gave it another name while it was made, so that it has {names}: create it again, in a directory that only \
                     its users may write to"
                ),
            }));
        }
        // Unlike link and unlink, a rename never shows the file under two names.
        match renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE) {
            Ok(()) => {
                // The name is gone, so there is nothing left to remove.
                std::mem::forget(self);
                Ok(())
            }
            Err(Errno::EXIST) => Err(Error::Open(OpenError::AlreadyExists {
                path: target.to_owned(),
            })),
            Err(errno) => Err(io_error(PUBLISH, target, errno.into())),
        }
    }
}

impl Drop for Construction {
    fn drop(&mut self) {
        // If this fails, the next process that creates the file removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a new file beside the target. While its creator is alive, it has a lock on the file, so that others can tell
/// when it has been abandoned, even in another PID namespace. The process id in its name is for people.
pub(super) fn start_construction(
    directory: &Path,
    name: &OsStr,
    path: &Path,
) -> Result<(File, Construction), Error> {
    static ATTEMPT: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut construction_name = OsString::from(".");
        construction_name.push(name);
        construction_name.push(format!(
            ".{}.{}.{}.{CONSTRUCTION_SUFFIX}",
            std::process::id(),
            own_start_time(),
            ATTEMPT.fetch_add(1, Ordering::Relaxed),
        ));
        let construction = directory.join(construction_name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&construction);
        match opened {
            Ok(file) => {
                let construction = Construction { path: construction };
                if is_claimed(&file, construction.path()).map_err(|source| io_error("lock", path, source))? {
                    return Ok((file, construction));
                }
                if let Some(error) = locked_by_reader(&file, ByteRange::CONSTRUCTION, path) {
                    return Err(error);
                }
                // Another process has taken it for abandoned and removes it: the name is no longer ours.
                std::mem::forget(construction);
            }
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) if source.raw_os_error() == Some(libc::ENOSPC) => {
                return Err(Error::Open(OpenError::NoSpace {
                    path: path.to_owned(),
                    bytes: 0,
                    why: FULL.to_owned(),
                }));
            }
            Err(source) => return Err(io_error("create", path, source)),
        }
    }
}

/// Locks a file under construction. Returns whether it is ours and still has its name: before it was locked, another
/// process may have taken it for abandoned. It may have other names, so how many it has says nothing.
fn is_claimed(file: &File, path: &Path) -> io::Result<bool> {
    if !try_lock(file.as_fd(), ByteRange::CONSTRUCTION)? {
        return Ok(false);
    }
    let place = |found: &Metadata| (found.dev(), found.ino());
    match path.symlink_metadata() {
        Ok(found) => Ok(place(&found) == place(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes what was left behind by processes that died while creating this segment.
pub(super) fn remove_abandoned(directory: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if is_construction(&entry.file_name(), name) {
            // What this process may not examine or remove is left to others.
            let _ = remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(path: &Path) -> Result<(), Error> {
    let file = open_for_writing(path)?;
    // While we hold this lock, no creator claims the file and nobody else removes it, so its name stays its own.
    if is_claimed(&file, path).map_err(|source| io_error("lock", path, source))? {
        fs::remove_file(path).map_err(|source| io_error("remove", path, source))?;
    }
    Ok(())
}

fn is_construction(candidate: &OsStr, name: &OsStr) -> bool {
    let is_number = |field: &&str| field.parse::<u64>().is_ok();
    let fields = || {
        let rest = candidate
            .as_bytes()
            .strip_prefix(b".")?
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b".")?;
        let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split('.').collect();
        let [pid, start_time, attempt, CONSTRUCTION_SUFFIX] = fields[..] else {
            return None;
        };
        Some([pid, start_time, attempt])
    };
    fields().is_some_and(|fields| fields.iter().all(is_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constructed(directory: &Path) -> (File, Construction, PathBuf) {
        let target = directory.join("limits");
        let (file, construction) =
            start_construction(directory, OsStr::new("limits"), &target).expect("a file");
        (file, construction, target)
    }

    #[test]
    fn a_file_that_was_given_another_name_is_not_published() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_file, construction, target) = constructed(directory.path());
        let other = directory.path().join("other");
        fs::hard_link(construction.path(), &other).expect("a link");
        let error = construction.publish(&target).expect_err("it has two names");
        assert!(
            matches!(error, Error::Open(OpenError::Untrusted { .. })),
            "{error}"
        );
        let left: Vec<_> = fs::read_dir(directory.path())
            .expect("a directory")
            .flatten()
            .collect();
        assert_eq!(left.len(), 1, "only the other name is left: {left:?}");
        let (_file, construction, target) = constructed(directory.path());
        construction.publish(&target).expect("it has one name");
    }

    #[test]
    fn a_file_whose_name_is_gone_is_no_ones_although_it_has_another() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, construction, _) = constructed(directory.path());
        assert!(is_claimed(&file, construction.path()).expect("works"));
        fs::rename(construction.path(), directory.path().join("other")).expect("renamed");
        assert!(
            !is_claimed(&file, construction.path()).expect("works"),
            "nothing is there"
        );
        File::create_new(construction.path()).expect("a file");
        assert!(
            !is_claimed(&file, construction.path()).expect("works"),
            "another file is there"
        );
    }
}
