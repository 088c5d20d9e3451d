//! Batches that a process has drawn and no longer uses.

use std::sync::{Arc, Weak};

use crate::api::segment::shared_segment::SharedSegment;
use crate::api::set::limit_set::LimitSet;
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::process::participant::Membership;
use crate::shm::time::clock::boot_nanos;
use crate::units::NANOS_PER_SECOND;

/// A batch from which nothing was spent for this long is returned.
const UNUSED_AFTER: u64 = NANOS_PER_SECOND;

/// The open handles of segments from whose sets this process draws [batches](crate::Limit::credit). All handles of one
/// segment share its batches, and any handle that is still open can return them.
///
/// A forked child inherits its parent's handles, unless another thread was using the list at that moment: then it has
/// only those that it [draws](UnusedBatches::of) from or opens itself.
#[derive(Debug, Default)]
struct DrawingHandles {
    open: ProcessMutex<Vec<OpenHandle>>,
}

/// A segment and one of its handles.
type OpenHandle = (Weak<Membership>, Weak<SharedSegment>);

static DRAWING_HANDLES: DrawingHandles = DrawingHandles {
    open: ProcessMutex::new(),
};

impl DrawingHandles {
    /// Adds an open handle, if it is not known yet.
    fn add(&self, shared: &Arc<SharedSegment>) {
        let Ok(mut open) = self.open.lock() else {
            return;
        };
        open.retain(|(_, handle)| handle.strong_count() > 0);
        if !open
            .iter()
            .any(|(_, handle)| handle.as_ptr() == Arc::as_ptr(shared))
        {
            open.push((Arc::downgrade(&shared.engine.membership), Arc::downgrade(shared)));
        }
    }

    /// The handles of one segment. Those of others are left alone, and none is dropped under the list's lock:
    /// dropping the last handle of a segment detaches, which waits for locks.
    fn of(&self, membership: &Weak<Membership>) -> Vec<Arc<SharedSegment>> {
        let open = self.open.lock().map(|open| open.clone()).unwrap_or_default();
        let of_segment = open.iter().filter(|(of, _)| of.ptr_eq(membership));
        of_segment.filter_map(|(_, handle)| handle.upgrade()).collect()
    }
}

/// Records a handle that was opened, if batches are drawn through it.
pub(crate) fn note_handle(shared: &Arc<SharedSegment>) {
    let draws = shared.engine.sets().iter().any(|set| set.has_credit());
    if draws {
        DRAWING_HANDLES.add(shared);
    }
}

/// The batches that this process has drawn from a set [with credit](crate::Limit::credit). The background worker
/// returns those that go unused. It also checks whether the segment was removed, which admission from a batch does
/// not.
#[derive(Debug)]
pub(crate) struct UnusedBatches {
    membership: Weak<Membership>,
    set: usize,
    /// When to look again, on the boot-time clock.
    next: u64,
}

impl UnusedBatches {
    pub(crate) fn of(set: &LimitSet) -> Self {
        // A forked child may not have inherited it.
        DRAWING_HANDLES.add(set.shared());
        Self {
            membership: Arc::downgrade(&set.shared().engine.membership),
            set: set.position(),
            next: boot_nanos().saturating_add(UNUSED_AFTER),
        }
    }

    /// When to look again, on the boot-time clock.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns what was not used since the last look, if that is due. Returns false once there is nothing left to look
    /// after.
    pub(crate) fn look(&mut self) -> bool {
        let now = boot_nanos();
        if now < self.next {
            return true;
        }
        self.next = now.saturating_add(UNUSED_AFTER);
        let handles = DRAWING_HANDLES.of(&self.membership);
        for shared in &handles {
            // Each checks the path that it was opened by.
            shared.engine.look_for_removal_if_due();
        }
        match handles.first() {
            Some(shared) => {
                let set = shared.engine.sets().get(self.set);
                set.is_some_and(|set| shared.engine.return_unused_batches(set))
            }
            // A handle that is still being opened is not in the list yet.
            None => self.membership.strong_count() > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::unused_batches::*;
    use crate::declare::Credit;
    use crate::{Declaration, Limit, Segment, SetDeclaration};

    fn opened(directory: &tempfile::TempDir, name: &str) -> (Segment, LimitSet) {
        let limit = Limit::calls("requests", 100, Duration::from_secs(60)).credit(Credit::batch(10));
        let declaration = Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
        let segment = Segment::create(directory.path().join(name), &declaration).expect("a segment");
        let set = segment.set("api").expect("declared");
        (segment, set)
    }

    #[test]
    fn handles_are_found_by_their_segment() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_one, set_of_one) = opened(&directory, "one");
        let (other, set_of_other) = opened(&directory, "other");
        let handles = DrawingHandles::default();
        handles.add(set_of_one.shared());
        handles.add(set_of_other.shared());
        let of_other = Arc::downgrade(&set_of_other.shared().engine.membership);
        let found = handles.of(&of_other);
        assert_eq!(found.len(), 1);
        assert!(Arc::ptr_eq(&found[0], set_of_other.shared()));
        drop((found, other, set_of_other));
        assert!(handles.of(&of_other).is_empty());
    }

    #[test]
    fn a_handle_that_a_child_did_not_inherit_is_known_when_batches_are_drawn_by_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_segment, set) = opened(&directory, "limits");
        let membership = Arc::downgrade(&set.shared().engine.membership);
        // As after a fork while another thread was using the list.
        let open = DRAWING_HANDLES.open.lock();
        open.expect("a page").retain(|(of, _)| !of.ptr_eq(&membership));
        assert!(DRAWING_HANDLES.of(&membership).is_empty());
        let _batches = UnusedBatches::of(&set);
        assert_eq!(DRAWING_HANDLES.of(&membership).len(), 1);
    }
}
