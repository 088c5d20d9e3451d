//! The most that a rule admits in any stretch of time as long as its window, wherever that begins.
//!
//! A stretch is half open: it holds its first nanosecond and not the one at which it ends. Counted are units that were
//! admitted, by the segment's clock; usage above what was reserved is not, because it has happened already. The maximum
//! is reached, by those who press against the limit at the worst instants, but where said otherwise. All parameters
//! are those of a rule that can be made: positive, and with no more buckets than the window has nanoseconds.

use crate::units::greatest_common_divisor;

/// Of the rules with a backlog: the burst, and what is replenished between the first and the last instant of the window.
///
/// With more than one unit a nanosecond, and a burst that time replenishes in less than a nanosecond, the maximum may be
/// less.
pub(crate) fn of_backlog(capacity: u64, window: u64, burst: u64) -> u128 {
    let (capacity, window, burst) = (u128::from(capacity), u128::from(window), u128::from(burst));
    if burst == 1 {
        // Each unit waits for whole nanoseconds until the one before it is worked off.
        return 1 + (window - 1) / window.div_ceil(capacity);
    }
    (burst + capacity - capacity.div_ceil(window)).min(burst * window)
}

/// Of fixed windows that have their places in time: one may be used up at its end, and the next at its beginning.
pub(crate) fn of_aligned_window(capacity: u64, window: u64) -> u128 {
    u128::from(capacity) * if window > 1 { 2 } else { 1 }
}

/// Of fixed windows that begin with a use: as those that have their places in time, less the unit that began the first.
pub(crate) fn of_window_from_first_use(capacity: u64, window: u64) -> u128 {
    of_aligned_window(capacity, window) - u128::from(window > 1)
}

/// Of the sliding window counter: one sub-window may be used up in its last instant, and when the stretch ends, a window
/// later, only the share of it that is still in view keeps others from being admitted.
pub(crate) fn of_sliding_counter(capacity: u64, window: u64, buckets: u64) -> u128 {
    // As everything here scaled by the number of buckets: from the first instant of the stretch to the sub-window's end
    // at least, and one nanosecond, by which the stretch's last instant comes before a whole window later.
    let in_view = u128::from(greatest_common_divisor(window, buckets)) + u128::from(buckets);
    let counted = (u128::from(capacity) * in_view).div_ceil(u128::from(window));
    u128::from(capacity) + u128::from(capacity).saturating_sub(counted)
}
