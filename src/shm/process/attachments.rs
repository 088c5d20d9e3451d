//! The segments this process is attached to, so that it takes one participant's slot and one mapping for each,
//! however often it opens the segment.

use std::sync::{Arc, Weak};

use crate::shm::file::descriptor::FileIdentity;
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::process::participant::Membership;

/// The memberships of this process, some of which may have ended. A forked child inherits its parent's list, unless
/// another thread was changing it during the fork; the child then attaches again to each segment it opens.
static ATTACHMENTS: ProcessMutex<Vec<Weak<Membership>>> = ProcessMutex::new();

/// This process's membership in the segment in that file, if it has one.
pub(in crate::shm) fn find(file: FileIdentity) -> Option<Arc<Membership>> {
    let memberships = ATTACHMENTS.lock().ok()?.clone();
    // A membership keeps its file mapped, so no other file has its device and inode. An upgraded reference may be the
    // last by now; it is dropped outside the lock.
    memberships
        .iter()
        .filter_map(Weak::upgrade)
        .find(|membership| membership.is_of(file))
}

/// Registers a membership for whatever is opened later in this process. The caller must hold the segment's attach
/// lock.
pub(in crate::shm) fn add(membership: &Arc<Membership>) {
    // If the kernel cannot tell a forked child from its parent, no process is attached to anything.
    let Ok(mut memberships) = ATTACHMENTS.lock() else {
        return;
    };
    memberships.retain(|known| known.strong_count() > 0);
    memberships.push(Arc::downgrade(membership));
}
