//! Vegas: how many units wait in the server's queue, worked out from the latency.
//!
//! L. Brakmo, S. O'Malley and L. Peterson, "TCP Vegas: New Techniques for Congestion Detection and Avoidance" (1994):
//! of an estimate of *n* units, *n* (1 - latency without a queue / latency) are queued. Below alpha the estimate
//! rises, above beta it falls, in between it stays. `VegasLimit` in Netflix's `concurrency-limits` adds the quick
//! rise if next to nothing is queued, the fall if something is dropped, and the rule that an estimate which is less
//! than half used does not rise. The steps are fractions here: a thirty-second of the estimate, or a quarter of what
//! the queue has above beta, so that a server which has lost most of its capacity is relieved quickly. Alpha and beta
//! are 5 and 10 percent of the estimate, so that it settles within about a ninth above the capacity at any size.
//!
//! The latency without a queue is about the lowest mean of any round so far: a quicker round moves it halfway down. A
//! [probe](super::round) that finds it higher raises it by a quarter of the distance, but by an eighth at most. So a
//! server that has become slower for good is recognised within a few hundred rounds, and one that is only overloaded
//! for a while does not spoil it.
//!
//! Vegas needs latencies that are alike from round to round: noise looks like a queue and keeps the estimate lower.

use super::estimate::{ONE, is_far_below};
use super::round::{BASE, Phase, Round};
use crate::limit::StateMut;

/// The fraction of the distance by which a quicker round lowers the latency without a queue.
const FALL_OF_BASE: u64 = 2;

/// The fraction of the distance by which a probe raises the latency without a queue, and the fraction of itself that
/// caps the rise.
const RISE_BY_PROBE: u64 = 4;
const MAX_RISE: u64 = 8;

/// Fractions of the estimate: a negligible queue, and the shortest and the longest queue wanted.
const NEXT_TO_NOTHING: u128 = 40;
const ALPHA: u128 = 20;
const BETA: u128 = 10;

/// The fraction of the estimate that is a step, and the fraction of an excess queue that is taken away at once.
const STEP: u128 = 32;
const FALL: u128 = 4;

/// The estimate after a round, in parts of a unit; `None` if it does not change.
pub(super) fn learn(state: &mut (impl StateMut + ?Sized), estimate: u64, round: Round) -> Option<u128> {
    let base = round.latency.map(|latency| {
        let base = follow(state.load(BASE), latency, round.phase);
        state.store(BASE, base);
        (base, latency)
    });
    let present = u128::from(estimate);
    let step = (present / STEP).max(u128::from(ONE / 4));
    if round.failed {
        return Some(present.saturating_sub(step));
    }
    let (base, latency) = base?;
    if round.phase != Phase::Whole || is_far_below(round.in_flight, estimate) {
        return None;
    }
    // The product of 2^56 and a word fits. A base above the latency means no queue.
    let queue = present.saturating_sub(present * u128::from(base) / u128::from(latency));
    if queue <= present / NEXT_TO_NOTHING {
        Some(present + (present / BETA).max(step))
    } else if queue < present / ALPHA {
        Some(present + step)
    } else {
        let excess = queue.checked_sub(present / BETA).filter(|excess| *excess > 0)?;
        Some(present.saturating_sub(step.max(excess / FALL)))
    }
}

/// The latency without a queue, after a round.
fn follow(base: u64, latency: u64, phase: Phase) -> u64 {
    if base == 0 {
        latency
    } else if latency <= base {
        base - (base - latency).div_ceil(FALL_OF_BASE)
    } else if phase == Phase::Probe {
        base + (latency - base)
            .div_ceil(RISE_BY_PROBE)
            .min(base.div_ceil(MAX_RISE))
    } else {
        base
    }
}
