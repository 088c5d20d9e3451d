//! When a wait ends, on two clocks: the one that its owner sleeps by, and the one that the queue is served by.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::shard::segment_engine::SegmentEngine;
use crate::shm::layout::places::TicketPlace;
use crate::shm::time::clock::boot_nanos;
use crate::shm::time::virtual_clock::VirtualClock;
use crate::units::nanos_from_duration;

/// When a wait ends. Both instants are `u64::MAX` if it may last forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// On the boot-time clock, by which its owner sleeps; `u64::MAX` under a virtual clock, because boot time then says
    /// nothing about it.
    boot: u64,
    /// On the segment clock, by which every process decides whether the ticket may still be granted.
    segment: u64,
}

impl Deadline {
    pub(crate) fn on_boot_clock(self) -> u64 {
        self.boot
    }

    pub(in crate::engine) fn on_segment_clock(self) -> u64 {
        self.segment
    }
}

impl SegmentEngine {
    /// The time by which waits are measured: boot time, or that of a virtual clock.
    pub(crate) fn wait_nanos(&self) -> u64 {
        self.clock
            .as_virtual()
            .map_or_else(boot_nanos, VirtualClock::nanos)
    }

    /// The deadline of a wait that begins now. Without a timeout, the wait may last forever.
    pub(crate) fn deadline_after(&self, timeout: Option<Duration>) -> Deadline {
        match timeout.and_then(nanos_from_duration) {
            None => Deadline {
                boot: u64::MAX,
                segment: u64::MAX,
            },
            Some(timeout) => Deadline {
                boot: if self.clock.is_virtual() {
                    u64::MAX
                } else {
                    boot_nanos().saturating_add(timeout)
                },
                segment: self.segment_nanos().saturating_add(timeout),
            },
        }
    }
}

impl TicketPlace<'_> {
    /// Whether its deadline has passed at `now`, on the segment clock.
    pub(in crate::engine) fn is_expired(self, now: u64) -> bool {
        self.deadline().load(Ordering::Relaxed) <= now
    }
}
