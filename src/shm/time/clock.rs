//! Where time comes from.
#![allow(unsafe_code)]

use crate::units::NANOS_PER_SECOND;

/// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    nanos(libc::CLOCK_BOOTTIME)
}

/// Nanoseconds since the Unix epoch; zero where the wall clock stands before it.
#[inline]
pub(crate) fn utc_nanos() -> u64 {
    nanos(libc::CLOCK_REALTIME)
}

#[inline]
fn nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Called without a wrapper, because this is a third of what an operation costs. These clocks exist on every
    // supported kernel, so it cannot fail; if it did, the time would be zero, which no rule objects to.
    // SAFETY: the pointer is to a live, writable timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(NANOS_PER_SECOND).wrapping_add(nanos)
}
