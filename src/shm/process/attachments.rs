//! What this process is attached to, so that it takes one participant's slot and one mapping for each segment, however
//! often it opens it.

use std::sync::{Arc, Weak};

use crate::shm::file::descriptor::FileIdentity;
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::process::participant::Membership;

/// The memberships of this process, some of which may have ended. A forked child has inherited those of its parent, unless
/// another thread was just changing the list: what the child opens then, it is attached to once more.
static ATTACHMENTS: ProcessMutex<Vec<Weak<Membership>>> = ProcessMutex::new();

/// The membership of this process in the segment of that file, if it has one.
pub(in crate::shm) fn find(file: FileIdentity) -> Option<Arc<Membership>> {
    let memberships = ATTACHMENTS.lock().ok()?.clone();
    // The file of a membership stays mapped, so its device and inode are no other file's. What was upgraded may be the
    // last by now: it is dropped outside of the lock.
    memberships
        .iter()
        .filter_map(Weak::upgrade)
        .find(|membership| membership.is_of(file))
}

/// Lets what is opened later in this process find a membership. The caller holds the segment's attach lock.
pub(in crate::shm) fn add(membership: &Arc<Membership>) {
    // Where the kernel cannot tell a forked child from its parent, no process is attached to anything.
    let Ok(mut memberships) = ATTACHMENTS.lock() else {
        return;
    };
    memberships.retain(|known| known.strong_count() > 0);
    memberships.push(Arc::downgrade(membership));
}
