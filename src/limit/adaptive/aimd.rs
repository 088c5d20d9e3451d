//! Additive increase, multiplicative decrease.
//!
//! D.-M. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
//! Networks" (1989), show that among the linear rules this one converges to an efficient and fair share. The steps
//! are those of TCP's congestion avoidance (RFC 5681): one more for each round of as many samples as the estimate has
//! units, and at most one fall for everything that was in flight together (RFC 3168, section 6.1.2). `AIMDLimit` in
//! Netflix's `concurrency-limits` adds the fall by a tenth, the latency that counts as a failure, and the rule that
//! an estimate which is less than half used does not rise; but it rises by one with each sample and falls with each
//! failure.
//!
//! AIMD learns from failures only. If an overloaded server answers late instead of not at all, the timeout decides:
//! with service times of *s* the estimate swings between nine tenths and the whole of capacity times timeout / *s*. A
//! timeout of 1.1 to 1.2 times the slowest answers of an idle server keeps it near the capacity.

use super::estimate::{ONE, is_far_below};
use super::sample::Sample;
use crate::limit::{Now, StateMut};

pub(super) const STATE_WORDS: usize = 3;

const FELL_AT: usize = 2;

/// The estimate after a sample, in parts of a unit; `None` if it does not change.
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
            // One unit per as many samples as the estimate has units.
            estimate_wide + (one * one / estimate_wide.max(1)).max(1)
        });
    }
    let begun = now.monotonic.saturating_sub(sample.latency);
    let fell_at = state.load(FELL_AT);
    // An instant in the future is damage.
    if fell_at > 0 && fell_at <= now.monotonic && begun <= fell_at {
        // The work was in flight when the estimate fell, so it says nothing about the present estimate.
        return None;
    }
    state.store(FELL_AT, now.monotonic);
    Some(estimate_wide * 9 / 10)
}
