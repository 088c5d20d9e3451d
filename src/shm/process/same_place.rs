//! Whether a segment is of this boot, these namespaces and this file.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::host::HostIdentity;
use crate::choices::LockKind;
use crate::error::{Error, OpenError};
use crate::shm::file::descriptor::FileIdentity;
use crate::shm::file::region::load_acquire;
use crate::shm::file::segment_file::io_error;
use crate::shm::layout::records::Header;

/// The value of `boot_id[1]` while a segment whose boot is unknown is started cold. No boot has such an id: the first
/// bits of an id's second half tell its kind.
pub(crate) const UNKNOWN_BOOT: u64 = 1;

/// Whether two things, either of which may be unknown, are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likeness {
    Same,
    Another,
    /// One of the two is unknown: without another reason they are not taken to be different.
    Unknown,
}

pub(super) fn is_same_file(header: &Header, file: FileIdentity) -> bool {
    header.device.load(Ordering::Relaxed) == file.device && header.inode.load(Ordering::Relaxed) == file.inode
}

pub(super) fn load_pair(words: &[AtomicU64; 2]) -> [u64; 2] {
    [load_acquire(&words[0]), load_acquire(&words[1])]
}

/// Where a segment comes from: what its header says about the processes that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentOrigin {
    pub(crate) place: HostIdentity,
    /// It is the file that the header was made for, not a copy.
    pub(crate) is_original_file: bool,
}

impl SegmentOrigin {
    pub(crate) fn of(header: &Header, file: FileIdentity) -> Self {
        Self {
            place: HostIdentity {
                boot_id: load_pair(&header.boot_id),
                pid_namespace: header.pid_namespace.load(Ordering::Relaxed),
                time_namespace: header.time_namespace.load(Ordering::Relaxed),
            },
            is_original_file: is_same_file(header, file),
        }
    }

    /// Whether the segment is of that place, as far as its locks depend on it, and of this file.
    pub(crate) fn likeness(self, lock_kind: LockKind, place: HostIdentity) -> Likeness {
        let has_same_pids =
            !lock_kind.is_of_one_namespace() || self.place.pid_namespace == place.pid_namespace;
        if self.is_original_file && has_same_pids && self.place.time_namespace == place.time_namespace {
            self.boot(place)
        } else {
            Likeness::Another
        }
    }

    /// Whether the segment is of that place's boot.
    pub(crate) fn boot(self, place: HostIdentity) -> Likeness {
        match self.place.boot_id {
            // A cold start was interrupted.
            [0, second] if second != 0 => Likeness::Another,
            [_, 0] => Likeness::Unknown,
            _ if place.boot_id[1] == 0 => Likeness::Unknown,
            boot_id if boot_id == place.boot_id => Likeness::Same,
            _ => Likeness::Another,
        }
    }
}

/// Where this process runs, to be compared with a segment.
pub(crate) fn current_place(path: &Path) -> Result<HostIdentity, Error> {
    HostIdentity::current()
        .map_err(|source| io_error("determine the boot and the namespaces for", path, source))
}

/// Checks that the boot-time clock means the same to this process as to those that use the segment, and so do thread
/// ids, if the segment's locks name threads.
pub(crate) fn ensure_same_namespaces(
    header: &Header,
    lock_kind: LockKind,
    place: HostIdentity,
    path: &Path,
) -> Result<(), Error> {
    for (what, word, expected, matters) in [
        (
            "PID",
            &header.pid_namespace,
            place.pid_namespace,
            lock_kind.is_of_one_namespace(),
        ),
        ("time", &header.time_namespace, place.time_namespace, true),
    ] {
        let found = word.load(Ordering::Relaxed);
        if matters && found != expected {
            return Err(Error::Open(OpenError::ForeignNamespace {
                path: path.to_owned(),
                what,
                found,
                expected,
            }));
        }
    }
    Ok(())
}
