//! What gradient and Vegas have in common: they judge samples by rounds, and probe the estimate now and then.
//!
//! A round has as many samples as the capacity has units, which is about what is in flight together, and at least
//! ten, so that one late answer does not decide. It takes the place of the sampling windows of `WindowedLimit` in
//! Netflix's `concurrency-limits`, but needs no clock.
//!
//! Both compare the latency of a round with that of a server without a queue. Under a load that never lets up there
//! is always some queue, and a baseline measured under it would creep upwards. So in three of 64 rounds a quarter
//! less than the estimate is admitted: the queue drains, and the last of the three shows the latency without it, as
//! in the `ProbeRTT` phase of BBR (N. Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016).

use super::sample::Sample;
use crate::limit::{State, StateMut};

pub(super) const STATE_WORDS: usize = 6;

/// The latency to compare with, in nanoseconds; zero while there is none.
pub(super) const BASE: usize = 2;
const LATENCIES: usize = 3;
const COUNT_AND_IN_FLIGHT: usize = 4;
const FAILED_AND_ROUNDS: usize = 5;

const MIN_SAMPLES: u64 = 10;

/// Rounds from one probe to the next, and how many at the end of them admit less.
const PERIOD: u64 = 64;
const PROBING: u64 = 3;

/// What a round showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The mean latency of what was not dropped, in nanoseconds, positive; `None` if everything was dropped.
    pub(super) latency: Option<u64>,
    /// The most units in flight.
    pub(super) in_flight: u64,
    /// Whether anything was dropped.
    pub(super) failed: bool,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The whole estimate was admitted.
    Whole,
    /// Less was admitted, but the samples still include work admitted before.
    Draining,
    /// Less was admitted, and the queue has drained.
    Probe,
}

/// Adds a sample. If it completes a round of `capacity` units, asks `judge` for a new estimate.
pub(super) fn learn<S: StateMut + ?Sized>(
    state: &mut S,
    capacity: u64,
    sample: Sample,
    judge: impl FnOnce(&mut S, Round) -> Option<u128>,
) -> Option<u128> {
    let (mut count, max) = halves(state.load(COUNT_AND_IN_FLIGHT));
    let (mut failed, rounds) = halves(state.load(FAILED_AND_ROUNDS));
    let mut latencies = state.load(LATENCIES);
    let in_flight = max.max(sample.in_flight);
    if sample.failed {
        failed += 1;
    } else {
        count += 1;
        latencies = latencies.saturating_add(sample.latency);
    }
    if count + failed < capacity.max(MIN_SAMPLES) {
        state.store(LATENCIES, latencies);
        state.store(COUNT_AND_IN_FLIGHT, joined(count, in_flight));
        state.store(FAILED_AND_ROUNDS, joined(failed, rounds));
        return None;
    }
    let next = rounds + 1;
    state.store(LATENCIES, 0);
    state.store(COUNT_AND_IN_FLIGHT, 0);
    state.store(FAILED_AND_ROUNDS, joined(0, if next < PERIOD { next } else { 0 }));
    let round = Round {
        latency: latencies.checked_div(count).map(|latency| latency.max(1)),
        in_flight,
        failed: failed > 0,
        phase: match next {
            PERIOD => Phase::Probe,
            _ if is_probing(rounds) => Phase::Draining,
            _ => Phase::Whole,
        },
    };
    judge(state, round)
}

/// Whether less than the estimate is admitted now.
#[inline]
pub(super) fn is_probed(state: &(impl State + ?Sized)) -> bool {
    is_probing(halves(state.load(FAILED_AND_ROUNDS)).1)
}

/// What is admitted during a probe.
#[inline]
pub(super) fn probing_capacity(units: u64) -> u64 {
    units - units / 4
}

/// More rounds than a period has are damage, and start the next period.
#[inline]
fn is_probing(rounds: u64) -> bool {
    (PERIOD - PROBING..PERIOD).contains(&rounds)
}

fn halves(word: u64) -> (u64, u64) {
    (word & u64::from(u32::MAX), word >> 32)
}

fn joined(low: u64, high: u64) -> u64 {
    let max = u64::from(u32::MAX);
    low.min(max) | (high.min(max) << 32)
}
