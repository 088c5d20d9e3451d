//! What this process knows of the removal of a segment, and when it looks again.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::shm::time::segment_clock::SegmentClock;

/// In place of the next look: another segment is at the path.
pub(in crate::engine) const REPLACED: u64 = 0;

/// In place of the next look under a virtual clock: such a segment belongs to one process only.
const NEVER: u64 = u64::MAX;

/// What this process knows of the removal of a segment.
#[derive(Debug)]
pub(in crate::engine) struct RemovalWatch {
    /// When to look next, on the segment clock.
    pub(in crate::engine) next_look: AtomicU64,
    pub(in crate::engine) was_reported: AtomicBool,
}

impl RemovalWatch {
    pub(in crate::engine) fn new(clock: &SegmentClock) -> Self {
        // The first operation finds that it is time to look.
        let next_look = if clock.is_virtual() { NEVER } else { 1 };
        Self {
            next_look: AtomicU64::new(next_look),
            was_reported: AtomicBool::new(false),
        }
    }
}
