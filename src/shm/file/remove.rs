//! The end of a segment: it is retired under the attach lock, so that no process joins in the meantime, and then
//! unlinked.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::descriptor::FileIdentity;
use super::file_lock::{ByteRange, is_locked_by_others};
use super::lasting_locks::ensure_locks_last;
use super::memory_file::{is_anonymous, needs_a_path};
use super::region::{Region, load_acquire};
use super::removal::retire;
use super::segment_file::{AttachLock, damaged, io_error, open_for_writing, start_of};
use super::verified::{Verified, check_file, check_header, verify};
use crate::error::{Error, OpenError, ProcessId, SegmentError};
use crate::shm::layout::records::{HEADER_SPACE, Header, MAGIC};

/// Removes the segment at `path`. This process need not be attached, and does not attach.
///
/// Unless `forced`, a segment stays if live processes are attached to it, if it is damaged, or if it is of another
/// format. A file without a segment's magic number always stays.
pub(crate) fn remove(path: &Path, trust_any_owner: bool, forced: bool) -> Result<(), Error> {
    let file = open_for_writing(path)?;
    let verified = match check_file(&file, path, trust_any_owner).and_then(|size| map(&file, size, path)) {
        Ok(verified) => Some(verified),
        // Where participants and the retired mark are in such a file is anybody's guess, so nothing is written.
        Err(
            Error::Open(OpenError::WrongSize { .. })
            | Error::Segment(SegmentError::Damaged { .. })
            | Error::Open(OpenError::Incompatible { .. }),
        ) if forced && start_of(&file, path)? == MAGIC => None,
        Err(error) => return Err(error),
    };
    let lock = match AttachLock::take(&file, path) {
        Ok(lock) => Some(lock),
        Err(Error::Open(OpenError::AttachStuck { .. } | OpenError::LockedByReader { .. })) if forced => None,
        Err(error) => return Err(error),
    };
    if let Some(verified) = &verified {
        let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
        if !forced {
            refuse_while_in_use(verified, header, &file, path)?;
        }
        retire(header);
    }
    let outcome = unlink(path, &file);
    drop(lock);
    outcome
}

/// Checks that [`remove`] would not refuse the segment at `path` because it is in use.
///
/// # Errors
///
/// [`OpenError::InUse`], and the errors of [`remove`].
pub(crate) fn ensure_unused(path: &Path, trust_any_owner: bool) -> Result<(), Error> {
    let file = open_for_writing(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    let verified = map(&file, size, path)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    refuse_while_in_use(&verified, header, &file, path)
}

/// Removes the file at `path` if it is a retired segment: the work of a process that was killed while removing it.
pub(crate) fn finish_removal(path: &Path, trust_any_owner: bool) -> Result<(), Error> {
    let file = open_for_writing(path)?;
    let size = check_file(&file, path, trust_any_owner)?;
    let verified = map(&file, size, path)?;
    let lock = AttachLock::take(&file, path)?;
    let header: &Header = verified.region.record(0).map_err(|place| damaged(path, place))?;
    // The path may lead to its successor by now.
    if load_acquire(&header.retired) != 0 {
        if is_anonymous(&file) {
            return Err(needs_a_path(
                path,
                "it was retired, and no other can take its place: make one",
            ));
        }
        unlink(path, &file)?;
    }
    drop(lock);
    Ok(())
}

/// Removes the segment at `path` if it is refused as damaged, no process uses it, and `successor` provides one to
/// take its place. Returns the successor.
///
/// # Errors
///
/// [`OpenError::NotFound`] if what is at the path is not damaged, or no longer is.
pub(crate) fn remove_damaged<T>(
    path: &Path,
    trust_any_owner: bool,
    successor: impl FnOnce() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let file = open_for_writing(path)?;
    if start_of(&file, path)? != MAGIC {
        return Ok(None);
    }
    let lock = AttachLock::take(&file, path)?;
    match check_file(&file, path, trust_any_owner).and_then(|size| map(&file, size, path)) {
        Err(Error::Segment(SegmentError::Damaged { .. }) | Error::Open(OpenError::WrongSize { .. })) => {}
        Ok(_) | Err(Error::Segment(SegmentError::Removed { .. })) => {
            return Err(Error::Open(OpenError::NotFound {
                path: path.to_owned(),
            }));
        }
        Err(error) => return Err(error),
    }
    ensure_locks_last(&file, path)?;
    // The number of participants cannot be read from such a file, but the kernel knows their locks.
    let is_in_use = is_locked_by_others(file.as_fd(), ByteRange::ALL_PARTICIPANTS)
        .map_err(|errno| io_error("examine the locks of", path, errno.into()))?;
    if is_in_use {
        return Ok(None);
    }
    let successor = successor()?;
    if successor.is_some() {
        unlink(path, &file)?;
    }
    drop(lock);
    Ok(successor)
}

fn map(file: &File, size: u64, path: &Path) -> Result<Verified, Error> {
    let header =
        Region::read_only(file, HEADER_SPACE as usize).map_err(|source| io_error("map", path, source))?;
    check_header(&header, size, path)?;
    let region = Region::writable(file, size as usize).map_err(|source| io_error("map", path, source))?;
    verify(Arc::new(region), path)
}

/// A retired segment is not in use, even if processes are attached: none of them can use it any more.
fn refuse_while_in_use(verified: &Verified, header: &Header, file: &File, path: &Path) -> Result<(), Error> {
    if load_acquire(&header.retired) != 0 {
        return Ok(());
    }
    // If locks do not last, they cannot show that nobody uses it.
    ensure_locks_last(file, path)?;
    let processes = verified.live_processes(file);
    let table = verified.participants();
    let processes: Vec<ProcessId> = processes
        .into_iter()
        .map(|process| table.shown(process))
        .collect();
    if processes.is_empty() {
        Ok(())
    } else {
        Err(Error::Open(OpenError::InUse {
            path: path.to_owned(),
            processes,
        }))
    }
}

/// Unlinks the path if it still leads to `file`. Others who remove the same file wait for its attach lock, and nobody
/// creates a segment over an existing one, so the path does not change between the check and the removal.
///
/// An anonymous segment has nothing to unlink: it is gone with the last process that uses it.
pub(in crate::shm) fn unlink(path: &Path, file: &File) -> Result<(), Error> {
    if is_anonymous(file) {
        return Ok(());
    }
    let own = FileIdentity::of(file).map_err(|errno| io_error("examine", path, errno.into()))?;
    let current = open_for_writing(path)?;
    let current = FileIdentity::of(&current).map_err(|errno| io_error("examine", path, errno.into()))?;
    if current != own {
        // While we waited for its attach lock, a process removed this segment and another took its place.
        return Err(Error::Open(OpenError::NotFound {
            path: path.to_owned(),
        }));
    }
    std::fs::remove_file(path).map_err(|source| io_error("remove", path, source))
}
