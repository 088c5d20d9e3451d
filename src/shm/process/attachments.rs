//! What this process is attached to, so that it takes one participant's slot and one mapping for each segment, however
//! often it opens it.

use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use crate::shm::file::descriptor::FileIdentity;
use crate::shm::process::fork_identity::PerProcess;
use crate::shm::process::participant::Membership;

/// The memberships of this process, some of which may have ended.
#[derive(Debug, Default)]
struct Attachments {
    memberships: Mutex<Vec<Weak<Membership>>>,
}

static ATTACHMENTS: PerProcess<Attachments> = PerProcess::new();

impl Attachments {
    /// Those of this process. A forked child has inherited those of its parent, unless another thread was just changing
    /// the list: what the child opens then, it is attached to once more.
    fn get() -> Option<&'static Self> {
        let inherit = |parent: Option<&Self>| parent.map(Self::inherited).unwrap_or_default();
        ATTACHMENTS.get_or(inherit).ok()
    }

    fn inherited(&self) -> Self {
        let memberships = match self.memberships.try_lock() {
            Ok(memberships) => memberships.clone(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
            Err(TryLockError::WouldBlock) => Vec::new(),
        };
        Self {
            memberships: Mutex::new(memberships),
        }
    }
}

/// The membership of this process in the segment of that file, if it has one.
pub(in crate::shm) fn find(file: FileIdentity) -> Option<Arc<Membership>> {
    let attachments = Attachments::get()?;
    let memberships = attachments
        .memberships
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
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
    let Some(attachments) = Attachments::get() else {
        return;
    };
    let mut memberships = attachments
        .memberships
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    memberships.retain(|known| known.strong_count() > 0);
    memberships.push(Arc::downgrade(membership));
}
