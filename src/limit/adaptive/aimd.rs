//! Additive increase, multiplicative decrease.
//!
//! D.-M. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
//! Networks" (1989), show that of the linear rules this is the one that converges, to a share that is efficient and
//! fair. The steps are those of TCP's congestion avoidance (RFC 5681): one more for each round of as many samples as
//! the estimate has units, and a fall at most once for what was under way together (RFC 3168, section 6.1.2). The
//! fall by a tenth, the latency that counts as a failure and the rule that an estimate which is less than half used
//! does not rise are those of `AIMDLimit` in Netflix's `concurrency-limits`; that one rises by one for each sample and
//! falls with each failure.
//!
//! It learns from failures only. Where an overloaded server answers late rather than not at all, the timeout makes
//! the difference: with service times of *s* the estimate swings between nine tenths and the whole of capacity times
//! timeout / *s*. A timeout of 1.1 to 1.2 times the slowest answers of an idle server keeps it near the capacity.

use super::estimate::{ONE, is_far_below};
use super::sample::Sample;
use crate::limit::{Now, StateMut};

pub(super) const STATE_WORDS: usize = 3;

const FELL_AT: usize = 2;

/// The estimate after a sample, in parts of a unit, where it changes.
pub(super) fn learn(
    state: &mut (impl StateMut + ?Sized),
    estimate: u64,
    timeout: u64,
    now: Now,
    sample: Sample,
) -> Option<u128> {
    let estimate_wide = u128::from(estimate);
    if !sample.failed && sample.latency <= timeout {
        let one = u128::from(ONE);
        return (!is_far_below(sample.in_flight, estimate)).then(|| {
            // One unit in as many samples as the estimate has units.
            estimate_wide + (one * one / estimate_wide.max(1)).max(1)
        });
    }
    let begun = now.monotonic.saturating_sub(sample.latency);
    let fell_at = state.load(FELL_AT);
    // An instant that is still to come is damage.
    if fell_at > 0 && fell_at <= now.monotonic && begun <= fell_at {
        // It was under way when the estimate fell, so it says nothing about the estimate as it is now.
        return None;
    }
    state.store(FELL_AT, now.monotonic);
    Some(estimate_wide * 9 / 10)
}
