//! What every rule can do.

use super::adaptive::sample::Sample;
use super::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, NearThreshold, Now, Standing, State, StateMut,
};
use crate::units::share;

/// What every rule can do. The default methods suit a rule that counts against a capacity: nothing of it is held,
/// given back or charged ahead.
///
/// [`Rule`](super::Rule) caps the instants it passes on at the latest one the rules are proven for.
pub(crate) trait RuleOperations: Copy + PartialEq {
    /// How many words of state the rule has.
    fn state_words(&self) -> usize;

    /// How much may be used before the limit is full.
    fn capacity(&self) -> u64;

    /// The limit's answer to `cost` now. Changes nothing. A cost of zero asks whether the limit is overdrawn.
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment;

    /// Takes `cost` whatever the limit says: either it was assessed as admissible, or the usage has already happened.
    /// Saturates. Stores at most five words, none for a cost of zero.
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64);

    /// Notes how the limit stands; [`standing`](Self::standing) works it out later.
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark;

    /// Whether the state carries no information any more: from `now` on, at every later instant of both clocks, it
    /// decides as a row of zeros would, except for what an adaptive limit has learnt. Only compares; calendar windows
    /// also divide.
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool;

    /// Replenishes the limit fully. Idempotent; at most 61 stores. A concurrency limit does not change, because its
    /// holders keep what they hold; an adaptive one forgets what it has learnt.
    fn reset(&self, state: &mut (impl StateMut + ?Sized));

    /// The same rule with another, positive capacity. A fixed, sliding or counted window keeps its size, its number
    /// of entries and its buckets; for the other rules `terms` give the price and the burst.
    fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit>;

    /// A cost above this can never be admitted.
    #[inline]
    fn burst(&self) -> u64 {
        self.capacity()
    }

    /// Whether [`Now::utc`] must be filled in.
    #[inline]
    fn reads_utc(&self) -> bool {
        false
    }

    /// Whether a cost can be charged as of a later instant. True if time works off what was charged, instead of
    /// windows counting it.
    fn reaches_ahead(&self) -> bool {
        false
    }

    /// Takes `cost` for a use `delay` nanoseconds from now: at that instant it looks as if it had just been taken.
    /// `delay` must be zero unless the rule [reaches ahead](Self::reaches_ahead).
    fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, _delay: u64, cost: u64) {
        self.charge(state, now, cost);
    }

    /// Assesses, and notes how the limit stands.
    #[inline]
    fn assess_and_mark(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> (Assessment, Mark) {
        (self.assess(state, now, cost), self.mark(state, now))
    }

    /// Assesses, and charges if admissible. Returns how the limit then stands, or else the assessment. A refusal
    /// stores nothing.
    #[inline]
    fn take(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Result<Mark, Assessment> {
        match self.assess(state, now, cost) {
            Assessment::Admissible => {
                self.charge(state, now, cost);
                Ok(self.mark(state, now))
            }
            refused => Err(refused),
        }
    }

    /// A lower bound, in nanoseconds, on when all of `amount` units can have been taken, in whatever portions, if
    /// nothing is given back; zero if unknown.
    fn earliest(&self, _state: &(impl State + ?Sized), _now: Now, _amount: u64) -> u64 {
        0
    }

    /// Gives back `unused` units of a charge, as far as they certainly still count. Returns the whole units by which
    /// the limit really rose: never above full, and zero without a change if nothing is certain.
    ///
    /// Afterwards the limit never admits more than if only the rest had been charged. Stores at most two words; a
    /// sliding window as many as it [may](super::SlidingWindow::refunding_within).
    fn refund(
        &self,
        _state: &mut (impl StateMut + ?Sized),
        _now: Now,
        _unused: u64,
        _charge: &Charge,
    ) -> u64 {
        0
    }

    /// Gives back what was held. Does nothing except for concurrency, fixed or adaptive.
    #[inline]
    fn give_back(&self, _state: &mut (impl StateMut + ?Sized), _amount: u64) {}

    /// Tells an adaptive limit how the work whose units are given back fared. Does nothing for others. Stores at most
    /// six words.
    #[inline]
    fn observe(&self, _state: &mut (impl StateMut + ?Sized), _now: Now, _sample: Sample) {}

    /// What a mark of this rule means.
    fn standing(&self, mark: Mark) -> Standing {
        Standing {
            remaining: self.capacity().saturating_sub(mark.first),
            reset_after: mark.second,
        }
    }

    /// The capacity an adaptive limit had found when the mark was made; `None` for others.
    fn found_capacity(&self, _mark: Mark) -> Option<u64> {
        None
    }

    /// The threshold for [`is_near`](Self::is_near) at `percent` (1 to 100) of the capacity, or of the burst if there
    /// is one.
    fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(u128::from(self.capacity()), percent)
    }

    /// Whether a limit that stood at `mark` had used at least the share the threshold was made for. An overdrawn
    /// limit had; one without a capacity never has.
    #[inline]
    fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        u128::from(mark.first) >= threshold.0
    }

    /// How much of the burst, or of what a window may hold, was used at `mark`, in parts of 2^32, rounded up. Zero
    /// for what is only held, and without a capacity.
    fn share(&self, mark: Mark) -> u64 {
        share(u128::from(mark.first), u128::from(self.capacity()))
    }

    /// Whether this rule can carry on with the state of a limit declared as `old`: it must be the same rule with as
    /// many words and the windows cut the same way, and the window of a sliding window counter must not shrink.
    fn can_migrate(&self, _old: &Self) -> bool {
        true
    }

    /// Rewrites the state of a limit that was declared as `old` and follows this rule from `now` on. The result is
    /// meaningless unless [`can_migrate`](Self::can_migrate).
    ///
    /// What was there stays, and nothing is granted for the past. Windows keep what they count now, against the new
    /// capacity, for at least as long as both the old and the new window would. What is in use stays in use.
    ///
    /// Stores nothing if only the capacity of a window changes, and 62 words at most.
    fn migrate(&self, _old: &Self, _state: &mut (impl StateMut + ?Sized), _now: Now) {}
}
