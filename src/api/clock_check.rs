//! Checks that the processor's counter tells the time as well as the system's clock does on this machine.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::shm::time::clock::boot_nanos;
use crate::shm::time::segment_clock::SegmentClock;

/// Readings between two checks of how long the run has taken.
const READINGS: u64 = 64;

/// Consecutive readings of one clock from which its cost is measured.
const PRICED: u32 = 10_000;

/// How the clock that segments read compares with the system's on this machine.
///
/// ```
/// use std::time::Duration;
///
/// let check = shmlimit::snapshot::ClockCheck::run(Duration::from_millis(20));
/// assert!(check.is_sound(), "{check:?}");
/// ```
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct ClockCheck {
    /// Whether segments read the processor's counter here. Otherwise they read the system's clock each time.
    pub reads_counter: bool,
    /// How many times both clocks were read.
    pub readings: u64,
    /// The furthest that a reading was ahead of the system's clock, in nanoseconds. Zero is promised, unless the
    /// kernel adjusts its clock at that moment.
    pub max_ahead_nanos: u64,
    /// The furthest that a reading was behind, in nanoseconds.
    pub max_behind_nanos: u64,
    /// How far behind a reading may be, in nanoseconds.
    pub bound_nanos: u64,
    /// The cost of a reading, in nanoseconds.
    pub reading_nanos: f64,
    /// The cost of a reading of the system's clock, in nanoseconds.
    pub system_reading_nanos: f64,
}

impl ClockCheck {
    /// Reads both clocks alternately for `length`.
    pub fn run(length: Duration) -> Self {
        let clock = SegmentClock::fastest();
        let end = Instant::now() + length;
        let (mut readings, mut max_ahead, mut max_behind) = (0, 0, 0);
        while Instant::now() < end {
            for _ in 0..READINGS {
                // Bracketed by two readings of the system's clock, so delays in between do no harm.
                let before = boot_nanos();
                let reading = clock.nanos(0);
                let after = boot_nanos();
                max_ahead = max_ahead.max(reading.saturating_sub(after));
                max_behind = max_behind.max(before.saturating_sub(reading));
            }
            readings += READINGS;
        }
        Self {
            reads_counter: matches!(clock, SegmentClock::Counter(_)),
            readings,
            max_ahead_nanos: max_ahead,
            max_behind_nanos: max_behind,
            bound_nanos: clock.max_lag(),
            reading_nanos: price(|| clock.nanos(0)),
            system_reading_nanos: price(boot_nanos),
        }
    }

    /// Whether no reading was ahead, and none further behind than allowed.
    pub fn is_sound(&self) -> bool {
        self.max_ahead_nanos == 0 && self.max_behind_nanos <= self.bound_nanos
    }
}

/// Nanoseconds per reading.
fn price(read: impl Fn() -> u64) -> f64 {
    let start = Instant::now();
    let mut latest = 0;
    for _ in 0..PRICED {
        latest = std::hint::black_box(read()).max(latest);
    }
    let elapsed = start.elapsed();
    std::hint::black_box(latest);
    elapsed.as_secs_f64() * 1e9 / f64::from(PRICED)
}
