//! Adaptive concurrency: how many units may be held at once is estimated from how the work fares.

mod aimd;
mod estimate;
mod gradient;
mod round;
pub(super) mod sample;
mod vegas;

use std::mem;

use self::estimate::ONE;
use self::sample::Sample;
use super::{
    Assessment, CapacityTerms, InvalidLimit, Mark, NearThreshold, Now, RuleOperations, Standing, State,
    StateMut,
};
use crate::units::saturate;

/// How the estimate follows what is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdaptiveAlgorithm {
    /// Rises by one a round, and falls by a tenth if something fails or takes longer than `timeout` nanoseconds. See
    /// [`aimd`].
    Aimd { timeout: u64 },
    /// Compares the latency of a round with its long-term average. See [`gradient`].
    Gradient,
    /// Works out from the latency of a round how many units are queued. See [`vegas`].
    Vegas,
}

/// As many units held at once as the present estimate says, between `floor` and `ceiling`; `start` at first.
///
/// Every process feeds the same estimate, one sample at a time and in any order.
///
/// State: the units in use; the estimate in parts of 2^24 of a unit, where zero stands for the start; then what the
/// algorithm has learnt. AIMD keeps the instant of the latest fall. The other two keep a latency to compare with
/// (zero while there is none) and the round in progress: the sum of its latencies; how many there are (low half) and
/// the most units in flight (high half); how many samples were dropped (low half) and how many rounds have passed
/// since the latest probe (high half).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adaptive {
    algorithm: AdaptiveAlgorithm,
    start: u64,
    floor: u64,
    ceiling: u64,
}

impl Adaptive {
    const IN_USE: usize = 0;
    const ESTIMATE: usize = 1;

    /// A higher ceiling would complicate the arithmetic.
    const MAX_CEILING: u64 = u32::MAX as u64;

    /// Units, `0 < floor <= start <= ceiling`, and the ceiling below 2^32.
    pub(crate) fn new(
        algorithm: AdaptiveAlgorithm,
        start: u64,
        floor: u64,
        ceiling: u64,
    ) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(floor, "floor")?;
        if algorithm == (AdaptiveAlgorithm::Aimd { timeout: 0 }) {
            return Err(InvalidLimit::Zero("timeout"));
        }
        for (what, given, max) in [
            ("ceiling", ceiling, Self::MAX_CEILING),
            ("start", start, ceiling),
            ("floor", floor, start),
        ] {
            if given > max {
                return Err(InvalidLimit::AboveMax { what, given, max });
            }
        }
        Ok(Self {
            algorithm,
            start,
            floor,
            ceiling,
        })
    }

    /// The capacity at which a mark was made. The mark of an unused limit is all zeros.
    fn marked_capacity(&self, mark: Mark) -> u64 {
        if mark.second == 0 {
            self.start
        } else {
            mark.second.clamp(self.floor, self.ceiling)
        }
    }

    /// The units that may be in use now: the estimate, or somewhat less during a probe.
    #[inline]
    fn present_capacity(&self, state: &(impl State + ?Sized)) -> u64 {
        let units = self.estimate(state) / ONE;
        match self.algorithm {
            AdaptiveAlgorithm::Gradient | AdaptiveAlgorithm::Vegas if round::is_probed(state) => {
                round::probing_capacity(units).max(self.floor)
            }
            _ => units,
        }
    }

    #[inline]
    fn estimate(&self, state: &(impl State + ?Sized)) -> u64 {
        match state.load(Self::ESTIMATE) {
            0 => self.start * ONE,
            estimate => self.bounded(u128::from(estimate)),
        }
    }

    #[inline]
    fn bounded(&self, estimate: u128) -> u64 {
        saturate(estimate).clamp(self.floor * ONE, self.ceiling * ONE)
    }
}

impl RuleOperations for Adaptive {
    fn state_words(&self) -> usize {
        match self.algorithm {
            AdaptiveAlgorithm::Aimd { .. } => aimd::STATE_WORDS,
            AdaptiveAlgorithm::Gradient | AdaptiveAlgorithm::Vegas => round::STATE_WORDS,
        }
    }

    fn capacity(&self) -> u64 {
        self.ceiling
    }

    /// A cost above the present estimate is refused like any other, because the estimate may rise.
    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), _now: Now, cost: u64) -> Assessment {
        match state.load(Self::IN_USE).checked_add(cost) {
            Some(held) if held <= self.present_capacity(state) => Assessment::Admissible,
            _ => Assessment::Refused { retry_after: None },
        }
    }

    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), _now: Now, cost: u64) {
        if cost > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_add(cost));
        }
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), _now: Now) -> Mark {
        Mark {
            first: state.load(Self::IN_USE),
            second: self.present_capacity(state),
        }
    }

    /// Whether nothing is in use. What was learnt may be forgotten, because it can be learnt again; and another key
    /// that is given this state must not start from it.
    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), _now: Now) -> bool {
        state.load(Self::IN_USE) == 0
    }

    /// Starts the estimate afresh and forgets what was learnt. What is held stays held.
    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        for word in Self::ESTIMATE..self.state_words() {
            state.store(word, 0);
        }
    }

    /// Unchanged: the capacity is what it finds.
    fn with_capacity(&self, _capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(*self)
    }

    #[inline]
    fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        if amount > 0 {
            state.store(Self::IN_USE, state.load(Self::IN_USE).saturating_sub(amount));
        }
    }

    /// Lets the estimate learn from a sample. At most six stores.
    fn observe(&self, state: &mut (impl StateMut + ?Sized), now: Now, sample: Sample) {
        let estimate = self.estimate(state);
        let learnt = match self.algorithm {
            AdaptiveAlgorithm::Aimd { timeout } => aimd::learn(state, estimate, timeout, now, sample),
            AdaptiveAlgorithm::Gradient => {
                round::learn(state, self.present_capacity(state), sample, |state, round| {
                    gradient::learn(state, estimate, round)
                })
            }
            AdaptiveAlgorithm::Vegas => {
                round::learn(state, self.present_capacity(state), sample, |state, round| {
                    vegas::learn(state, estimate, round)
                })
            }
        };
        if let Some(learnt) = learnt {
            state.store(Self::ESTIMATE, self.bounded(learnt));
        }
    }

    fn standing(&self, mark: Mark) -> Standing {
        Standing {
            remaining: self.marked_capacity(mark).saturating_sub(mark.first),
            reset_after: 0,
        }
    }

    fn found_capacity(&self, mark: Mark) -> Option<u64> {
        Some(self.marked_capacity(mark))
    }

    /// A percentage, because the capacity is in the mark.
    fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(100, percent)
    }

    #[inline]
    fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        u128::from(mark.first) * 100 >= threshold.0 * u128::from(self.marked_capacity(mark))
    }

    /// Nothing is used up, only held.
    fn share(&self, _mark: Mark) -> u64 {
        0
    }

    /// What one algorithm has learnt means nothing to another.
    fn can_migrate(&self, old: &Self) -> bool {
        mem::discriminant(&self.algorithm) == mem::discriminant(&old.algorithm)
    }

    /// What is in use stays in use. The estimate stays where it is, clamped to the new floor and ceiling.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), _now: Now) {
        let estimate = self.bounded(u128::from(old.estimate(state)));
        if estimate != self.estimate(state) {
            state.store(Self::ESTIMATE, estimate);
        }
    }
}
