//! Where time comes from.
#![allow(unsafe_code)]

use crate::units::NANOS_PER_SECOND;

/// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    nanos(read(libc::CLOCK_BOOTTIME))
}

/// Nanoseconds since the Unix epoch; zero if the wall clock is set to before it.
#[inline]
pub(crate) fn utc_nanos() -> u64 {
    let time = read(libc::CLOCK_REALTIME);
    if time.tv_sec < 0 { 0 } else { nanos(time) }
}

#[inline]
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Called without a wrapper, because this is a third of what an operation costs. These clocks exist on every
    // supported kernel, so it cannot fail; if it did, the time would be zero, which every rule accepts. SAFETY: the
    // pointer is to a live, writable timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time
}

/// The nanoseconds of a time that is not before the clock's epoch.
#[inline]
fn nanos(time: libc::timespec) -> u64 {
    NANOS_PER_SECOND
        .wrapping_mul(time.tv_sec.cast_unsigned())
        .wrapping_add(time.tv_nsec.cast_unsigned())
}
