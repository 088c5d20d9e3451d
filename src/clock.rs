//! Where time comes from.

use nix::time::{ClockId, clock_gettime};

use crate::units::NANOS_PER_SECOND;

/// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    nanos(ClockId::CLOCK_BOOTTIME)
}

/// Nanoseconds since the Unix epoch; zero where the wall clock stands before it.
#[inline]
pub(crate) fn utc_nanos() -> u64 {
    nanos(ClockId::CLOCK_REALTIME)
}

#[inline]
fn nanos(clock: ClockId) -> u64 {
    // Both clocks exist on every supported kernel, so the call cannot fail.
    clock_gettime(clock).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)
    })
}
