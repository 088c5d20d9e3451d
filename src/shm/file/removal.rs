//! Whether a segment is still the one that its users mean: not retired, its file not deleted, its path not another's.
//!
//! That a file has no name any more is a fact about the file, the same in every process and mount namespace, and nothing
//! gives it a name again: the process that finds it says so in the header, and all others know it at once. Where a path
//! leads may differ from process to process: the file may have been moved, and be in use by its new path. So another segment at
//! the path is a reason for this process alone, and a path that leads nowhere, or to no segment, is none.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::descriptor::FileIdentity;
use super::region::load_acquire;
use super::segment_file::{identity, open_for_reading, start_of};
use crate::error::RemovalCause;
use crate::shm::layout::records::{Header, MAGIC, RETIRED, RETIRED_AS_DELETED};

/// What the header says became of the segment.
pub(crate) fn marked_removal(header: &Header) -> Option<RemovalCause> {
    match load_acquire(&header.retired) {
        0 => None,
        RETIRED_AS_DELETED => Some(RemovalCause::Deleted),
        _ => Some(RemovalCause::Retired),
    }
}

/// Marks the segment as retired.
pub(crate) fn retire(header: &Header) {
    header.retired.store(RETIRED, Ordering::Release);
}

/// Asks the system what became of the segment of a file that this process opened by `path`.
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
        // Another process may just have retired it, which says more.
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
