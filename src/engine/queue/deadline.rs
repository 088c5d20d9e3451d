//! When a wait ends: by the clock that its owner sleeps by, and by the one that the queue is served by.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::shard::segment_engine::SegmentEngine;
use crate::shm::layout::places::TicketPlace;
use crate::shm::time::clock::boot_nanos;
use crate::units::nanos_from_duration;

/// When a wait ends. Both instants are the end of time where it goes on as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// On the boot-time clock, by which its owner sleeps.
    boot: u64,
    /// On the segment clock, by which every process decides whether the ticket may be granted still.
    segment: u64,
}

impl Deadline {
    pub(crate) fn on_boot_clock(self) -> u64 {
        self.boot
    }

    pub(in crate::engine) fn is_finite(self) -> bool {
        self.segment != u64::MAX
    }

    pub(in crate::engine) fn on_segment_clock(self) -> u64 {
        self.segment
    }
}

impl SegmentEngine {
    /// The end of a wait that begins now.
    pub(crate) fn deadline_after(&self, timeout: Option<Duration>) -> Deadline {
        match timeout.and_then(nanos_from_duration) {
            None => Deadline {
                boot: u64::MAX,
                segment: u64::MAX,
            },
            Some(timeout) => Deadline {
                boot: boot_nanos().saturating_add(timeout),
                segment: self.segment_nanos().saturating_add(timeout),
            },
        }
    }
}

impl TicketPlace<'_> {
    /// Whether the time of its owner is up at an instant of the segment clock.
    pub(in crate::engine) fn is_expired(self, now: u64) -> bool {
        self.deadline().load(Ordering::Relaxed) <= now
    }
}
