//! The pure limit rules: from a state, an instant, a cost and parameters to a verdict and a new state.
//!
//! A rule knows no clock, no memory and no lock. Its state is a row of 64-bit words behind [`State`], its time is
//! passed in as [`Now`], and a row of zeros is a limit that has never been used.

mod adaptive;
mod backlog;
mod budget;
mod concurrency;
mod lease;
mod rule;
mod rule_operations;
#[cfg(test)]
mod tests;
mod unlimited;
pub(crate) mod window;

pub(crate) use adaptive::sample::Sample;
pub(crate) use adaptive::{Adaptive, AdaptiveAlgorithm};
pub(crate) use backlog::Backlog;
pub(crate) use budget::Budget;
pub(crate) use concurrency::Concurrency;
pub(crate) use lease::{
    Answer, Ask, Installed, KeyLeaseState, LEASE_WORDS, LeaseOutcome, LeaseState, LeaseTerms, LeaseWord,
    Leased, Problem, Quarantine, SafeTerms, Shortage, Supply, automatic_length,
};
pub(crate) use rule::Rule;
pub(crate) use rule_operations::RuleOperations;
pub(crate) use unlimited::Unlimited;
pub(crate) use window::calendar::{Calendar, CalendarUnit, LocalTime, Transition};
pub(crate) use window::fixed_window::FixedWindow;
pub(crate) use window::sliding_window::SlidingWindow;
pub(crate) use window::sliding_window_counter::SlidingWindowCounter;

use crate::units::LATEST_INSTANT;

/// The instant at which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Nanoseconds on the segment's monotonic clock.
    pub(crate) monotonic: u64,
    /// Nanoseconds since the Unix epoch. Only windows aligned to UTC read it; otherwise it is zero.
    pub(crate) utc: u64,
}

impl Now {
    /// Both instants, capped at the latest one the rules are proven for. After that, time stands still, so limits keep
    /// refusing instead of overflowing.
    #[inline]
    pub(crate) fn within_proven_range(self) -> Self {
        Self {
            monotonic: self.monotonic.min(LATEST_INSTANT),
            utc: self.utc.min(LATEST_INSTANT),
        }
    }
}

/// A row of words that a rule reads. Any word may hold anything: a rule never panics on what it finds.
pub(crate) trait State {
    /// The word at `index`, which is below the rule's `state_words()`.
    fn load(&self, index: usize) -> u64;

    /// The words at `index` and `index + 1`.
    #[inline]
    fn load_pair(&self, index: usize) -> [u64; 2] {
        [self.load(index), self.load(index + 1)]
    }
}

/// A row of words that a rule may change.
pub(crate) trait StateMut: State {
    /// Replaces the word at `index`, which is below the rule's `state_words()`.
    fn store(&mut self, index: usize, value: u64);

    /// Replaces the words at `index` and `index + 1`.
    #[inline]
    fn store_pair(&mut self, index: usize, [first, second]: [u64; 2]) {
        self.store(index, first);
        self.store(index + 1, second);
    }
}

/// Two words as one number, the low word first.
#[inline]
fn load_wide(state: &(impl State + ?Sized), index: usize) -> u128 {
    let [low, high] = state.load_pair(index);
    u128::from(low) | (u128::from(high) << 64)
}

#[inline]
fn store_wide(state: &mut (impl StateMut + ?Sized), index: usize, value: u128) {
    state.store_pair(index, [value as u64, (value >> 64) as u64]);
}

/// A rule's answer to a cost at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assessment {
    /// The cost may be charged now.
    Admissible,
    /// The cost does not fit now. `retry_after` is the least number of nanoseconds after which it will, if nothing
    /// else is taken in the meantime; `None` if waiting alone cannot help.
    Refused {
        /// Nanoseconds, positive.
        retry_after: Option<u64>,
    },
}

/// What a rule notes at decision time so that a [`Standing`] can be worked out later: the caller pays for the
/// divisions, outside the critical section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl Mark {
    /// Splits `number`; the low half comes first.
    #[inline]
    fn of_wide(number: u128) -> Self {
        Self {
            first: number as u64,
            second: (number >> 64) as u64,
        }
    }

    /// Both as one number, `first` being the low half.
    #[inline]
    fn wide(self) -> u128 {
        u128::from(self.first) | (u128::from(self.second) << 64)
    }
}

/// What was charged and when, as a refund needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// On the monotonic clock.
    pub(crate) instant: u64,
    /// How the charge left the limit; `None` if unknown, in which case less may be given back.
    pub(crate) mark: Option<Mark>,
    pub(crate) cost: u64,
    /// Units charged together with this cost that come after it: time replenishes this cost before them.
    pub(crate) units_after: u64,
}

impl Charge {
    /// The charge with its instant capped at the latest one the rules are proven for.
    #[inline]
    fn within_proven_range(self) -> Self {
        Self {
            instant: self.instant.min(LATEST_INSTANT),
            ..self
        }
    }
}

/// The number of a [`Mark`] from which a limit counts as near its end. Worked out once per declaration, so that a
/// decision only has to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearThreshold(u128);

impl NearThreshold {
    /// No mark reaches it.
    const NEVER: Self = Self(u128::MAX);

    /// The least number that is at least `percent` percent of `whole`. `percent` is clamped to 1 to 100.
    fn share_of(whole: u128, percent: u8) -> Self {
        let percent = u128::from(percent.clamp(1, 100));
        // Divide first: the product may not fit.
        Self(whole / 100 * percent + (whole % 100 * percent).div_ceil(100))
    }
}

/// How a limit stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Units that could be taken at once.
    pub(crate) remaining: u64,
    /// Nanoseconds until the limit is fully replenished if nobody takes anything; zero if it is.
    pub(crate) reset_after: u64,
}

/// What a new capacity means for a limit whose price and burst follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapacityTerms {
    /// In nanoseconds; zero if there is no window or the price does not depend on it.
    pub(crate) window: u64,
    /// What comes back per window, if that is not the capacity.
    pub(crate) rate: Option<u64>,
    /// The burst, if it differs from the capacity.
    pub(crate) burst: Option<u64>,
}

/// Why the parameters of a limit cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidLimit {
    #[error("the {0} must be positive")]
    Zero(&'static str),
    #[error("over so long a window a burst of {given} cannot be counted exactly: the most is {max}")]
    InexactBurst { given: u64, max: u64 },
    #[error("the {what} is {given}; the most is {max}")]
    AboveMax {
        what: &'static str,
        given: u64,
        max: u64,
    },
}

impl InvalidLimit {
    /// Checks that a parameter, called `what`, is not zero.
    fn unless_positive(parameter: impl Into<u64>, what: &'static str) -> Result<(), Self> {
        if parameter.into() == 0 {
            return Err(Self::Zero(what));
        }
        Ok(())
    }
}
