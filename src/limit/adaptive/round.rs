//! What gradient and Vegas have in common: samples are judged by rounds, and now and then the estimate is probed.
//!
//! A round is as many samples as the capacity has units, about what is under way together, and ten at least, so that
//! one late answer does not decide. It stands for the sampling windows of `WindowedLimit` in Netflix's
//! `concurrency-limits`, but needs no clock.
//!
//! Both compare the latency of a round with that of a server without a queue. Under load that never lets up there is
//! always some queue, and a comparison with what was seen under it would creep upwards with it. So in three of 64
//! rounds a quarter less than the estimate is admitted: the queue drains, and the last of the three shows the latency
//! without it, as in the `ProbeRTT` phase of BBR (N. Cardwell et al., "BBR: Congestion-Based Congestion Control",
//! 2016).

use super::sample::Sample;
use crate::limit::{State, StateMut};

pub(super) const STATE_WORDS: usize = 6;

/// The latency to compare with, in nanoseconds; zero while there is none.
pub(super) const BASE: usize = 2;
const LATENCIES: usize = 3;
const COUNT_AND_IN_FLIGHT: usize = 4;
const FAILED_AND_ROUNDS: usize = 5;

const MIN_SAMPLES: u64 = 10;

/// Rounds from one probe to the next, and those at the end of them in which less is admitted.
const PERIOD: u64 = 64;
const PROBING: u64 = 3;

/// What a round showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The mean latency of what was not dropped, in nanoseconds, positive; nothing where everything was.
    pub(super) latency: Option<u64>,
    /// The most units that were in flight.
    pub(super) in_flight: u64,
    /// Whether anything was dropped.
    pub(super) failed: bool,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The whole estimate was admitted.
    Whole,
    /// Less was admitted, but what was under way before is still among the samples.
    Draining,
    /// Less was admitted.
    Probe,
}

/// Adds a sample, and asks `judge` for another estimate where that completes a round of `capacity` units.
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

/// What is admitted then.
#[inline]
pub(super) fn probing_capacity(units: u64) -> u64 {
    units - units / 4
}

/// More rounds than there are in a period are damage, and begin the next one.
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
