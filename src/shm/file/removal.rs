//! Whether a segment is still the one its users mean: not retired, its file not deleted, its path not taken by
//! another.
//!
//! A file that no longer has a name has none in any process or mount namespace, and nothing can give it a name again.
//! So the process that finds this out says so in the header, and all others know at once. What is at a path may
//! differ between processes: the file may have been moved and be in use under its new path. So another segment at the
//! path counts for this process only, and a path that leads nowhere, or to something that is not a segment, does not
//! count at all.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::descriptor::FileIdentity;
use super::region::load_acquire;
use super::segment_file::{identity, open_for_reading, start_of};
use crate::error::RemovalCause;
use crate::shm::layout::records::{Header, MAGIC, RETIRED, RETIRED_AS_DELETED};

/// What the header says has become of the segment.
pub(crate) fn marked_removal(header: &Header) -> Option<RemovalCause> {
    match load_acquire(&header.retired) {
        0 => None,
        RETIRED_AS_DELETED => Some(RemovalCause::Deleted),
        _ => Some(RemovalCause::Retired),
    }
}

pub(crate) fn retire(header: &Header) {
    header.retired.store(RETIRED, Ordering::Release);
}

/// Finds out what has become of a segment whose file this process opened by `path`.
pub(in crate::shm) fn look_for_removal(
    header: &Header,
    file_has_name: impl FnOnce() -> Option<bool>,
    file: FileIdentity,
    path: &Path,
) -> Option<RemovalCause> {
    if let Some(cause) = marked_removal(header) {
        return Some(cause);
    }
    if file_has_name() == Some(false) {
        // Another process may have just retired it; that says more.
        let _ = header
            .retired
            .compare_exchange(0, RETIRED_AS_DELETED, Ordering::Release, Ordering::Relaxed);
        return marked_removal(header);
    }
    is_another_segment(path, file).then_some(RemovalCause::Replaced)
}

/// Whether the path leads to a segment in another file.
fn is_another_segment(path: &Path, own: FileIdentity) -> bool {
    let Ok(status) = path.symlink_metadata() else {
        return false;
    };
    let found = FileIdentity {
        device: status.dev(),
        inode: status.ino(),
    };
    if found == own || !status.is_file() {
        return false;
    }
    open_for_reading(path).is_ok_and(|file| {
        identity(&file, path).is_ok_and(|file| file != own)
            && start_of(&file, path).is_ok_and(|start| start == MAGIC)
    })
}
