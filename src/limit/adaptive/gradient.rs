//! The gradient between a round's latency and the long-term one.
//!
//! After `Gradient2Limit` of Netflix's `concurrency-limits`. The gradient is the long-term latency over the present
//! one, between a half and one. The estimate moves a fifth of the way towards itself times the gradient plus some
//! room for a queue. At the usual latency this lets the estimate grow; once a queue of that size slows answers down
//! by as much, it stays. The room for a queue is a sixteenth of the estimate here, so that a large server is found in
//! as many rounds as a small one. In the end the estimate is about that much above the capacity.
//!
//! The original's long-term latency is an exponential average. Here it follows lower latencies faster than higher
//! ones, and is corrected by [probes](super::round): under steady load it would otherwise follow the queue that the
//! estimate itself allows. If the server becomes slower for good, the estimate falls until the average has caught up,
//! after a few hundred rounds.
//!
//! It needs latencies that are alike from round to round. A round in which something was dropped counts as the least
//! gradient.

use super::estimate::{ONE, is_far_below};
use super::round::{BASE, Phase, Round};
use crate::limit::StateMut;

/// Fractions of the distance by which the long-term latency follows a round.
const RISE: u64 = 256;
const FALL: u64 = 8;
const FALL_BY_PROBE: u64 = 2;

/// The fraction of the distance by which the estimate follows.
const SMOOTHING: u128 = 5;

/// The fraction of the estimate that may queue.
const QUEUE: u128 = 16;

/// The estimate after a round, in parts of a unit; `None` if it does not change.
pub(super) fn learn(state: &mut (impl StateMut + ?Sized), estimate: u64, round: Round) -> Option<u128> {
    let long = round.latency.map(|latency| {
        let long = follow(state.load(BASE), latency, round.phase);
        state.store(BASE, long);
        (long, latency)
    });
    let present = u128::from(estimate);
    if round.failed {
        return Some(present - present / 2 / SMOOTHING);
    }
    let (long, latency) = long?;
    if round.phase != Phase::Whole || is_far_below(round.in_flight, estimate) {
        return None;
    }
    // The product of 2^56 and a word fits.
    let graded = (present * u128::from(long) / u128::from(latency)).clamp(present / 2, present);
    let queue = (present / QUEUE).max(u128::from(ONE / 4));
    let target = graded + queue;
    Some((present * (SMOOTHING - 1) + target) / SMOOTHING)
}

/// The long-term latency after a round.
fn follow(long: u64, latency: u64, phase: Phase) -> u64 {
    match (long.checked_sub(latency), phase) {
        _ if long == 0 => latency,
        // Rounded up, so that it gets there.
        (Some(above), Phase::Probe) => long - above.div_ceil(FALL_BY_PROBE),
        (Some(above), _) => long - above.div_ceil(FALL),
        (None, _) => long + (latency - long).div_ceil(RISE),
    }
}
