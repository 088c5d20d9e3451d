//! Whether the lock of an open file lasts for as long as a page is mapped through it. Processes show that they are
//! alive by such a lock.
//!
//! It lasts if the kernel maps the file that was opened. An overlay maps the underlying file instead: closing the
//! descriptor then drops the last reference to what was opened, and the lock with it, so that every live process
//! looks dead. Other file systems may do the same, or forget locks altogether. So this does not rely on the file
//! system's name, but tries it out.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::file_lock::{ByteRange, is_locked_by_others, lock_of_others, try_lock, try_read_lock};
use super::file_system::name_under;
use super::segment_file::{identity, io_error, open_again, open_for_reading};
use crate::error::{Error, OpenError};
use crate::shm::process::fork_identity::{IdentityPage, ProcessIdentity};
use crate::shm::process::image_lock::ImageLock;
use crate::shm::time::clock::boot_nanos;

/// How many bytes to try before giving up without a result: one that is locked already tells nothing.
const ATTEMPTS: u64 = 4;

/// Checks that locks last on a file that processes may attach to. Changes nothing, and needs only permission to read
/// the file.
///
/// # Errors
///
/// [`OpenError::LocksNotKept`] if they do not.
pub(crate) fn ensure_locks_last(file: &File, path: &Path) -> Result<(), Error> {
    match locks_last(file, path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(locks_not_kept(file, path)),
        Err(errno) => Err(io_error("lock", path, errno.into())),
    }
}

/// Tries out whether locks last on a file. Returns true if that cannot be tried, because the path leads to another
/// file by now or others have locked every byte that is tried.
pub(crate) fn locks_last(file: &File, path: &Path) -> Result<bool, Errno> {
    static TRIALS: AtomicU64 = AtomicU64::new(0);
    let process = IdentityPage::get()?.current();
    let seed = boot_nanos()
        .rotate_left(32)
        .wrapping_add(boot_nanos())
        .wrapping_mul(u64::from(std::process::id()) | 1);
    for _ in 0..ATTEMPTS {
        let byte = ByteRange::trial(seed.wrapping_add(TRIALS.fetch_add(1, Ordering::Relaxed)));
        if lock_of_others(file.as_fd(), byte)?.is_some() {
            continue;
        }
        let Ok(own) = open_for_reading(path) else {
            return Ok(true);
        };
        if identity(&own, path).ok() != identity(file, path).ok() {
            return Ok(true);
        }
        // A shared lock, so that trials do not exclude each other.
        if try_read_lock(own.as_fd(), byte)? {
            let is_locked = || lock_of_others(file.as_fd(), byte).map(|lock| lock.is_some());
            let kept = ImageLock::keep(own, process, is_locked)?;
            if let Some(lock) = &kept {
                lock.release(process);
            }
            return Ok(kept.is_some());
        }
    }
    Ok(true)
}

/// The same for a file under construction at `construction`, which will be at `path`. Uses a participant's lock.
pub(in crate::shm) fn ensure_participants_can_be(
    file: &File,
    construction: &Path,
    path: &Path,
) -> Result<(), Error> {
    let failed = |errno: Errno| io_error("lock", path, errno.into());
    let process = IdentityPage::get().map_err(failed)?.current();
    let own = open_again(file.as_raw_fd(), construction, identity(file, path)?)?;
    let byte = ByteRange::participant(0);
    // No process knows the file yet. If somebody has locked it anyway, attaching reports that error.
    if try_lock(own.as_fd(), byte).map_err(failed)? {
        keep_participant(own, byte, process, file, path)?.release(process);
    }
    Ok(())
}

/// Keeps a participant's lock on its byte, taken by `own`, an open file with no other use. `witness`, another open
/// file, is used to check that the lock is kept.
///
/// # Errors
///
/// [`OpenError::LocksNotKept`].
pub(in crate::shm) fn keep_participant(
    own: File,
    byte: ByteRange,
    process: ProcessIdentity,
    witness: &File,
    path: &Path,
) -> Result<ImageLock, Error> {
    let is_locked = || is_locked_by_others(witness.as_fd(), byte);
    let kept = ImageLock::keep(own, process, is_locked);
    let kept = kept.map_err(|errno| io_error("keep a lock on", path, errno.into()))?;
    kept.ok_or_else(|| locks_not_kept(witness, path))
}

pub(super) fn locks_not_kept(file: &File, path: &Path) -> Error {
    Error::Open(OpenError::LocksNotKept {
        path: path.to_owned(),
        file_system: name_under(file),
    })
}
