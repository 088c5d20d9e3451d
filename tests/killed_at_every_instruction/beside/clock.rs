//! The clock of the segments in which an operation is tried: the real one, or one that stands still but for what the victim
//! lets pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shmlimit::{OpenOptions, VirtualClock};

use crate::beside::bystanders::TIMEOUT;

/// Of a process that does one job at a time, and of the children that it forks for that.
static STANDS_STILL: AtomicBool = AtomicBool::new(false);

/// Where it stands: the start of a year, long after the first hour of the epoch.
const INSTANT: Duration = Duration::from_secs(1_767_225_600);

/// Segments that are opened from now on are on a clock that stands still, or are not.
pub fn stand_still(stands_still: bool) {
    STANDS_STILL.store(stands_still, Ordering::Relaxed);
}

/// For how long a request waits for its turn, beside a victim that may let less than that pass.
pub fn patience() -> Duration {
    match STANDS_STILL.load(Ordering::Relaxed) {
        true => Duration::from_secs(24 * 3600),
        false => TIMEOUT,
    }
}

/// How a segment is opened, and the clock that this process has it on where that stands still. What one process lets pass,
/// others learn from what it does, as the latest time that anything was decided by.
pub fn options() -> (OpenOptions, Option<VirtualClock>) {
    let options = OpenOptions::new();
    if !STANDS_STILL.load(Ordering::Relaxed) {
        return (options, None);
    }
    let clock = VirtualClock::new(INSTANT).auto_advance(false);
    (options.virtual_clock(&clock), Some(clock))
}
