//! The state shared by the handles of one attached segment.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::mismatch::Mismatch;
use super::open_options::OpenOptions;
use crate::api::request_events::RequestEvents;
use crate::declaration::Declaration;
use crate::engine::SegmentEngine;
use crate::error::Error;
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::process::participant::ChildJoined;

/// The state shared by the handles of one attached segment.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    /// Tells it from all others that this process has had open. An address would not do: it can be reused.
    pub(crate) number: u64,
    pub(crate) engine: SegmentEngine,
    pub(crate) declaration: Declaration,
    pub(super) options: OpenOptions,
    pub(super) mismatches: Vec<Mismatch>,
    pub(crate) request_events: Option<RequestEvents>,
    /// The unknown names that were warned about, by set and name.
    pub(super) warned: ProcessMutex<HashSet<(usize, String)>>,
    /// Why the last checkpoint could not be taken.
    pub(super) checkpoint_failure: ProcessMutex<Option<Arc<Error>>>,
    /// Takes the checkpoints, if they are declared.
    pub(super) checkpoints: OnceBox<Arc<dyn ChildJoined>>,
}

impl SharedSegment {
    /// A number for the next segment to be opened.
    pub(super) fn next_number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this process meets the unknown name for the first time.
    pub(crate) fn is_first_warning(&self, set: usize, name: &str) -> bool {
        self.warned
            .lock()
            .is_ok_and(|mut warned| warned.insert((set, name.to_owned())))
    }
}
