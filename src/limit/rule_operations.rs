//! What every rule can do.

use super::adaptive::sample::Sample;
use super::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, NearThreshold, Now, Standing, State, StateMut,
};
use crate::units::share;

/// What every rule can do. What is not overridden is what a count against a capacity does, of which nothing is held,
/// given back or charged ahead.
///
/// [`Rule`](super::Rule) holds the instants that it hands on at the latest that the rules are proven for.
pub(crate) trait RuleOperations: Copy + PartialEq {
    /// How many words of state the rule keeps.
    fn state_words(&self) -> usize;

    /// What may be used until the limit is full.
    fn capacity(&self) -> u64;

    /// What the limit says to `cost` now. Changes nothing. A cost of zero asks whether the limit is overdrawn.
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment;

    /// Takes `cost`, whatever the limit says to it: what was assessed as admissible, or usage that already happened.
    /// Saturates. Stores four words at most, none for a cost of zero.
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64);

    /// Notes how the limit stands, for [`standing`](Self::standing) to work out later.
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark;

    /// Whether the state carries no information any more: from `now` on, at every later instant of both clocks, it
    /// decides as a row of zeros would, but for what an adaptive limit has learnt. Compares, and divides for calendar
    /// windows only.
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool;

    /// Makes the limit completely replenished. Idempotent, and at most 61 stores. A concurrency limit stays as it
    /// is, because its holders keep what they hold; an adaptive one forgets what it has learnt.
    fn reset(&self, state: &mut (impl StateMut + ?Sized));

    /// The same rule with another capacity, which is positive. A fixed, sliding or counted window stays as it is cut, with
    /// as many entries and buckets; `terms` say what becomes of the price and the burst of the others.
    fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit>;

    /// A cost above this can never be met.
    #[inline]
    fn burst(&self) -> u64 {
        self.capacity()
    }

    /// Whether [`Now::utc`] must be filled in.
    #[inline]
    fn reads_utc(&self) -> bool {
        false
    }

    /// Whether a cost can be charged as of a later instant: where what was charged is worked off by time, and not
    /// counted in windows.
    fn reaches_ahead(&self) -> bool {
        false
    }

    /// Takes `cost` for a use `delay` nanoseconds from now: a look at that instant finds it taken just then. Where
    /// the rule does not [reach ahead](Self::reaches_ahead), the delay must be zero.
    fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, _delay: u64, cost: u64) {
        self.charge(state, now, cost);
    }

    /// Assesses, and says how the limit stands.
    #[inline]
    fn assess_and_mark(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> (Assessment, Mark) {
        (self.assess(state, now, cost), self.mark(state, now))
    }

    /// Assesses, and charges if admissible: how the limit stands then, or what it said instead. Nothing is stored on
    /// a refusal.
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

    /// Nanoseconds before which `amount` units cannot all have been taken, in whatever portions they are asked for, if
    /// nothing is given back; zero where that is not known. Never more than it takes to take them.
    fn earliest(&self, _state: &(impl State + ?Sized), _now: Now, _amount: u64) -> u64 {
        0
    }

    /// Gives back `unused` units of a charge, as far as they still count and that is certain, and returns the whole units
    /// by which the limit really rose: never above full, and zero, with no change, where nothing is certain.
    ///
    /// After it the limit never admits more than if it had been charged the rest only. Stores two words at most, a sliding
    /// window as many as it [may](super::SlidingWindow::refunding_within).
    fn refund(
        &self,
        _state: &mut (impl StateMut + ?Sized),
        _now: Now,
        _unused: u64,
        _charge: &Charge,
    ) -> u64 {
        0
    }

    /// Gives back what was held. Does nothing but for concurrency, fixed or adaptive.
    #[inline]
    fn give_back(&self, _state: &mut (impl StateMut + ?Sized), _amount: u64) {}

    /// Tells an adaptive limit how the work fared whose units are given back. Does nothing for others, and stores six
    /// words at most.
    #[inline]
    fn observe(&self, _state: &mut (impl StateMut + ?Sized), _now: Now, _sample: Sample) {}

    /// What a mark of this rule says.
    fn standing(&self, mark: Mark) -> Standing {
        Standing {
            remaining: self.capacity().saturating_sub(mark.first),
            reset_after: mark.second,
        }
    }

    /// The capacity that an adaptive limit had found when the mark was made; none for others.
    fn found_capacity(&self, _mark: Mark) -> Option<u64> {
        None
    }

    /// What [`is_near`](Self::is_near) compares with, for a share of the capacity (of the burst, where there is one)
    /// of `percent`, from 1 to 100.
    fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(u128::from(self.capacity()), percent)
    }

    /// Whether a limit that stood at `mark` had used at least the share that the threshold was made for. An overdrawn
    /// limit had; one without a capacity never has.
    #[inline]
    fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        u128::from(mark.first) >= threshold.0
    }

    /// How much of the limit was used where it stood at `mark`, in parts of 2^32, rounded up: of the burst, or of what a
    /// window may hold. Zero for what is only held, and where there is no capacity.
    fn share(&self, mark: Mark) -> u64 {
        share(u128::from(mark.first), u128::from(self.capacity()))
    }

    /// Whether the state of a limit that was declared as `old` can go on as this rule's: the same rule, as many
    /// words, windows cut in the same way, and no shorter window for the sliding window counter.
    fn can_migrate(&self, _old: &Self) -> bool {
        true
    }

    /// Rewrites the state of a limit that was declared as `old` and is this from `now` on. Where
    /// [`can_migrate`](Self::can_migrate) says no, nothing sensible comes of it.
    ///
    /// What was there stays, and nothing is granted for the past. Windows keep what they count now, against the new
    /// capacity, and for at least as long as the old and the new window would. What is in use stays in use.
    ///
    /// Stores nothing where only the capacity of a window changes, and 62 words at most.
    fn migrate(&self, _old: &Self, _state: &mut (impl StateMut + ?Sized), _now: Now) {}
}
