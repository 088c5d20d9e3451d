//! Vegas: how many units wait in the server's queue, worked out from the latency.
//!
//! L. Brakmo, S. O'Malley and L. Peterson, "TCP Vegas: New Techniques for Congestion Detection and Avoidance" (1994):
//! of an estimate of *n* units, *n* (1 - latency without a queue / latency) are queued; below alpha the estimate rises,
//! above beta it falls, in between it stays. The quick rise where next to nothing is queued, the fall where something is
//! dropped and the rule that an estimate which is less than half used does not rise are those of `VegasLimit` in
//! Netflix's `concurrency-limits`. The steps are shares here: a thirty-second of the estimate, or a quarter of what the
//! queue has above beta, so that a server which lost most of its capacity is not kept waiting. Alpha and beta are 5 and
//! 10 percent of the estimate, so that it ends within about a ninth above the capacity at any size.
//!
//! The latency without a queue is about the lowest mean of a round that was seen: a quicker round takes it half of the
//! way. A [probe](super::round) that finds it higher raises it by a quarter of the distance and by an eighth at most, so
//! that a server which became slower for good is found out in some hundred rounds, and one that is merely overloaded
//! at the time does not spoil it.
//!
//! It needs latencies that are alike from round to round: noise looks like a queue, and keeps the estimate lower.

use super::estimate::{ONE, is_far_below};
use super::round::{BASE, Phase, Round};
use crate::limit::StateMut;

/// The share of the distance by which a quicker round lowers the latency without a queue.
const FALL_OF_BASE: u64 = 2;

/// The share of the distance by which a probe raises the latency without a queue, and the share of itself that this
/// may be at most.
const RISE_BY_PROBE: u64 = 4;
const MAX_RISE: u64 = 8;

/// Shares of the estimate: a queue of no account, and the least and the most that there should be.
const NEXT_TO_NOTHING: u128 = 40;
const ALPHA: u128 = 20;
const BETA: u128 = 10;

/// The share of the estimate that is a step, and the share of too long a queue that is taken away at once.
const STEP: u128 = 32;
const FALL: u128 = 4;

/// The estimate after a round, in parts of a unit, where it changes.
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
    // Below 2^56 times a word. A base above the latency is no queue.
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
