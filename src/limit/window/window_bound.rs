//! The most that a rule admits in any span of time as long as its window, wherever it begins.
//!
//! A span is half open: it contains its first nanosecond but not its end. Only admitted units count, by the segment's
//! clock; usage above what was reserved does not, because it has happened already. Unless noted otherwise, the maximum
//! is reached by a caller who presses against the limit at the worst instants. All parameters are those of a rule that
//! can exist: positive, and with no more buckets than the window has nanoseconds.

use crate::units::greatest_common_divisor;

/// For rules with a backlog: the burst, plus what is replenished between the first and the last instant of the
/// window.
///
/// With more than one unit a nanosecond and a burst that time replenishes in less than a nanosecond, the true maximum
/// may be less.
pub(crate) fn of_backlog(capacity: u64, window: u64, burst: u64) -> u128 {
    let (capacity, window, burst) = (u128::from(capacity), u128::from(window), u128::from(burst));
    if burst == 1 {
        // Each unit waits for whole nanoseconds until the one before it is worked off.
        return 1 + (window - 1) / window.div_ceil(capacity);
    }
    (burst + capacity - capacity.div_ceil(window)).min(burst * window)
}

/// For fixed windows with fixed places in time: one may be used up at its end, and the next at its beginning.
pub(crate) fn of_aligned_window(capacity: u64, window: u64) -> u128 {
    u128::from(capacity) * if window > 1 { 2 } else { 1 }
}

/// For fixed windows that begin with a use: the same, less the unit that began the first window.
pub(crate) fn of_window_from_first_use(capacity: u64, window: u64) -> u128 {
    of_aligned_window(capacity, window) - u128::from(window > 1)
}

/// For the sliding window counter: one sub-window may be used up in its last instant, and a window later, when the
/// span ends, only the fraction of it that is still in view keeps others from being admitted.
pub(crate) fn of_sliding_counter(capacity: u64, window: u64, buckets: u64) -> u128 {
    // Everything here is scaled by the number of buckets. Still in view: at least the distance from the span's first
    // instant to the sub-window's end, and one nanosecond, because the span's last instant comes just before a whole
    // window later.
    let in_view = u128::from(greatest_common_divisor(window, buckets)) + u128::from(buckets);
    let counted = (u128::from(capacity) * in_view).div_ceil(u128::from(window));
    u128::from(capacity) + u128::from(capacity).saturating_sub(counted)
}
