//! The clock of one attachment to a segment.

use super::anchored_clock::MAX_LAG;
use super::clock::boot_nanos;
use super::processor_counter::{counted_boot_nanos, is_sound};
use super::virtual_clock::VirtualClock;
use crate::shm::process::fork_identity::IdentityPage;

/// The source of the time.
#[derive(Clone, Debug)]
pub(crate) enum SegmentClock {
    /// The system's boot-time clock.
    System,
    /// The processor's counter, anchored to that clock, in the process that the page identifies.
    Counter(IdentityPage),
    /// The caller.
    Virtual(VirtualClock),
}

impl SegmentClock {
    /// The cheapest clock that is sound on this machine.
    pub(crate) fn fastest() -> Self {
        match IdentityPage::get() {
            Ok(page) if is_sound() => Self::Counter(page),
            _ => Self::System,
        }
    }

    /// The time of the segment clock, which is `offset` ahead of the boot-time clock.
    #[inline]
    pub(crate) fn nanos(&self, offset: u64) -> u64 {
        match self {
            Self::Counter(page) => counted_boot_nanos(*page).wrapping_add(offset),
            Self::System => boot_nanos().wrapping_add(offset),
            Self::Virtual(clock) => clock.nanos(),
        }
    }

    /// [`nanos`](Self::nanos), but exact.
    pub(crate) fn system_nanos(&self, offset: u64) -> u64 {
        match self {
            Self::Counter(_) | Self::System => boot_nanos().wrapping_add(offset),
            Self::Virtual(clock) => clock.nanos(),
        }
    }

    /// How far a reading may be behind the segment clock, in nanoseconds; none is ahead of it.
    #[inline]
    pub(crate) fn max_lag(&self) -> u64 {
        match self {
            Self::Counter(_) => MAX_LAG,
            Self::System | Self::Virtual(_) => 0,
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.as_virtual().is_some()
    }

    pub(crate) fn as_virtual(&self) -> Option<&VirtualClock> {
        match self {
            Self::Virtual(clock) => Some(clock),
            Self::Counter(_) | Self::System => None,
        }
    }
}
