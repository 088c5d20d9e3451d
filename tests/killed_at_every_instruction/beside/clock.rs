//! The clock of the segments in which an operation is tried: the real one, or one that stands still except when the
//! victim lets time pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shmlimit::{OpenOptions, VirtualClock};

use crate::beside::bystanders::TIMEOUT;

/// For a process that does one job at a time, and for the children that it forks for that.
static STANDS_STILL: AtomicBool = AtomicBool::new(false);

/// Where the clock stands: the start of a year, long after the first hour of the epoch.
const INSTANT: Duration = Duration::from_secs(1_767_225_600);

/// Segments that are opened from now on have a clock that stands still, or the real one.
pub fn stand_still(stands_still: bool) {
    STANDS_STILL.store(stands_still, Ordering::Relaxed);
}

/// How long a request waits for its turn beside a victim that may let less than that pass.
pub fn patience() -> Duration {
    match STANDS_STILL.load(Ordering::Relaxed) {
        true => Duration::from_secs(24 * 3600),
        false => TIMEOUT,
    }
}

/// How to open a segment, and this process's clock for it, if that stands still. Other processes learn how much time
/// one has let pass from what it does, which leaves the latest time at which anything was decided.
pub fn options() -> (OpenOptions, Option<VirtualClock>) {
    let options = OpenOptions::new();
    if !STANDS_STILL.load(Ordering::Relaxed) {
        return (options, None);
    }
    let clock = VirtualClock::new(INSTANT).auto_advance(false);
    (options.virtual_clock(&clock), Some(clock))
}
