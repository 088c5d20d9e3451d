//! Any limit rule, behind the one door the engine goes through.

use std::mem;

use super::backlog::BacklogBound;
use super::{
    Adaptive, Assessment, Budget, CapacityTerms, Concurrency, FixedWindow, Gcra, InvalidLimit, LeakyBucket,
    Mark, NearThreshold, Now, Sample, SlidingWindow, SlidingWindowCounter, Standing, State, StateMut,
    TokenBucket,
};

/// A declared limit: its algorithm and parameters, without its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    TokenBucket(TokenBucket),
    Gcra(Gcra),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingWindowCounter(SlidingWindowCounter),
    Budget(Budget),
    Concurrency(Concurrency),
    Adaptive(Adaptive),
    /// Always admits.
    Unlimited,
}

impl Rule {
    /// How many words of state the rule keeps.
    #[inline]
    pub(crate) fn state_words(&self) -> usize {
        match self {
            Self::TokenBucket(_) => TokenBucket::STATE_WORDS,
            Self::Gcra(_) => Gcra::STATE_WORDS,
            Self::LeakyBucket(_) => LeakyBucket::STATE_WORDS,
            Self::FixedWindow(rule) => rule.state_words(),
            Self::SlidingWindow(rule) => rule.state_words(),
            Self::SlidingWindowCounter(rule) => rule.state_words(),
            Self::Budget(rule) => rule.state_words(),
            Self::Concurrency(_) => Concurrency::STATE_WORDS,
            Self::Adaptive(rule) => rule.state_words(),
            Self::Unlimited => 0,
        }
    }

    /// A cost above this can never be met.
    #[inline]
    pub(crate) fn most_at_once(&self) -> u64 {
        match self {
            Self::TokenBucket(rule) => rule.most_at_once(),
            Self::Gcra(rule) => rule.most_at_once(),
            Self::LeakyBucket(rule) => rule.most_at_once(),
            Self::FixedWindow(rule) => rule.most_at_once(),
            Self::SlidingWindow(rule) => rule.most_at_once(),
            Self::SlidingWindowCounter(rule) => rule.most_at_once(),
            Self::Concurrency(rule) => rule.most_at_once(),
            Self::Adaptive(rule) => rule.most_at_once(),
            Self::Budget(_) | Self::Unlimited => u64::MAX,
        }
    }

    /// Whether [`Now::utc`] must be filled in.
    #[inline]
    pub(crate) fn reads_utc(&self) -> bool {
        match self {
            Self::FixedWindow(rule) => rule.reads_utc(),
            Self::Budget(rule) => rule.reads_utc(),
            _ => false,
        }
    }

    /// What the limit says to `cost` now. Changes nothing. A cost of zero asks whether the limit is overdrawn.
    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.assess(state, now, cost),
            Self::Gcra(rule) => rule.assess(state, now, cost),
            Self::LeakyBucket(rule) => rule.assess(state, now, cost),
            Self::FixedWindow(rule) => rule.assess(state, now, cost),
            Self::SlidingWindow(rule) => rule.assess(state, now, cost),
            Self::SlidingWindowCounter(rule) => rule.assess(state, now, cost),
            Self::Budget(rule) => rule.assess(state, now),
            Self::Concurrency(rule) => rule.assess(state, cost),
            Self::Adaptive(rule) => rule.assess(state, cost),
            Self::Unlimited => Assessment::Admissible,
        }
    }

    /// Takes `cost`, whatever the limit says to it: what was assessed as admissible, or usage that already happened.
    /// Saturates. Stores four words at most, none for a cost of zero.
    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.charge(state, now, cost),
            Self::Gcra(rule) => rule.charge(state, now, cost),
            Self::LeakyBucket(rule) => rule.charge(state, now, cost),
            Self::FixedWindow(rule) => rule.charge(state, now, cost),
            Self::SlidingWindow(rule) => rule.charge(state, now, cost),
            Self::SlidingWindowCounter(rule) => rule.charge(state, now, cost),
            Self::Budget(rule) => rule.charge(state, now, cost),
            Self::Concurrency(rule) => rule.charge(state, cost),
            Self::Adaptive(rule) => rule.charge(state, cost),
            Self::Unlimited => {}
        }
    }

    /// Takes `cost` for a use `delay` nanoseconds from now: whoever asks at that instant finds it taken just then. Where
    /// the rule does not [reach ahead](Self::reaches_ahead), the delay must be zero.
    pub(crate) fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        match self {
            Self::TokenBucket(rule) => rule.charge_ahead(state, now.within_proven_range(), delay, cost),
            Self::Gcra(rule) => rule.charge_ahead(state, now.within_proven_range(), delay, cost),
            Self::LeakyBucket(rule) => rule.charge_ahead(state, now.within_proven_range(), delay, cost),
            _ => self.charge(state, now, cost),
        }
    }

    /// Assesses, and charges if admissible: how the limit stands then, or what it said instead. Nothing is stored on
    /// a refusal.
    #[inline]
    pub(crate) fn take(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        cost: u64,
    ) -> Result<Mark, Assessment> {
        // The default algorithm is also the one that is worth a path of its own: it reads its state once.
        if let Self::Gcra(rule) = self {
            return rule.take(state, now.within_proven_range(), cost);
        }
        match self.assess(state, now, cost) {
            Assessment::Admissible => {
                self.charge(state, now, cost);
                Ok(self.mark(state, now))
            }
            refused => Err(refused),
        }
    }

    /// What is left, scaled, of a cost whose charge left the limit at `mark`, `elapsed` nanoseconds ago: what time has
    /// not replenished since. Where it is not known how the charge left the limit, never more than that. Zero where the
    /// algorithm does not refund.
    pub(crate) fn left(&self, mark: Option<Mark>, elapsed: u64, cost: u64) -> u128 {
        self.bound().map_or(0, |bound| bound.left(mark, elapsed, cost))
    }

    /// What the mark was before the last `units` of its charge: that of the units that were charged before them. Of use for
    /// what is [left](Self::left) of these only, so the mark itself where the algorithm does not refund.
    pub(crate) fn mark_before_last(&self, mark: Mark, units: u64) -> Mark {
        self.bound()
            .map_or(mark, |bound| bound.mark_before_last(mark, units))
    }

    /// As [`left`](Self::left), of a cost that was charged by a `former` rule, with its mark, `elapsed` nanoseconds before
    /// and since this one came in its place.
    pub(crate) fn left_of_former(
        &self,
        former: &Self,
        mark: Option<Mark>,
        elapsed: (u64, u64),
        cost: u64,
    ) -> u128 {
        match (self.bound(), former.bound()) {
            (Some(bound), Some(former)) => bound.left_of_former(former, mark, elapsed, cost),
            _ => 0,
        }
    }

    /// Nanoseconds before which `amount` units cannot all have been taken, in whatever portions they are asked for, if
    /// nothing is given back; zero where that is not known. Never more than it takes to take them.
    pub(crate) fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.bound().earliest(rule.mark(state, now).wide(), amount),
            Self::Gcra(rule) => rule.bound().earliest(rule.mark(state, now).wide(), amount),
            Self::LeakyBucket(rule) => rule.bound().earliest(rule.mark(state, now).wide(), amount),
            Self::FixedWindow(rule) => rule.earliest(state, now, amount),
            Self::SlidingWindow(rule) => rule.earliest(state, now, amount),
            // What part of it counts at an instant to come is only approximate, what others give back is not known, and a
            // budget is debited what it is debited.
            Self::SlidingWindowCounter(_)
            | Self::Concurrency(_)
            | Self::Adaptive(_)
            | Self::Budget(_)
            | Self::Unlimited => 0,
        }
    }

    /// Whether a cost can be charged as of a later instant: where what was charged is worked off by time, and not
    /// counted in windows.
    pub(crate) fn reaches_ahead(&self) -> bool {
        matches!(
            self,
            Self::TokenBucket(_) | Self::Gcra(_) | Self::LeakyBucket(_) | Self::Unlimited
        )
    }

    /// Whether what was charged and not used can be given back.
    pub(crate) fn refunds(&self) -> bool {
        self.bound().is_some()
    }

    fn bound(&self) -> Option<&BacklogBound> {
        match self {
            Self::TokenBucket(rule) => Some(rule.bound()),
            Self::Gcra(rule) => Some(rule.bound()),
            _ => None,
        }
    }

    /// Gives back what was charged and not used, at most `left` of it, and returns the whole units by which the limit
    /// really rose: never above full, and zero, with no change, where the algorithm does not refund.
    ///
    /// Without the bound by what is left, a reservation that time has replenished long ago would be paid out of what
    /// others have taken since, and more than capacity and burst could be used within a window.
    #[inline]
    pub(crate) fn refund(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        amount: u64,
        left: u128,
    ) -> u64 {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.refund(state, now, amount, left),
            Self::Gcra(rule) => rule.refund(state, now, amount, left),
            _ => 0,
        }
    }

    /// Gives back what was held. Does nothing but for concurrency, fixed or adaptive.
    #[inline]
    pub(crate) fn give_back(&self, state: &mut (impl StateMut + ?Sized), amount: u64) {
        match self {
            Self::Concurrency(rule) => rule.give_back(state, amount),
            Self::Adaptive(rule) => rule.give_back(state, amount),
            _ => {}
        }
    }

    /// Makes the limit completely replenished. Idempotent, and at most 61 stores. A concurrency limit stays as it
    /// is, because its holders keep what they hold; an adaptive one forgets what it has learnt.
    pub(crate) fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        match self {
            Self::TokenBucket(rule) => rule.reset(state),
            Self::Gcra(rule) => rule.reset(state),
            Self::LeakyBucket(rule) => rule.reset(state),
            Self::FixedWindow(rule) => rule.reset(state),
            Self::SlidingWindow(rule) => rule.reset(state),
            Self::SlidingWindowCounter(rule) => rule.reset(state),
            Self::Budget(rule) => rule.reset(state),
            Self::Adaptive(rule) => rule.reset(state),
            Self::Concurrency(_) | Self::Unlimited => {}
        }
    }

    /// Notes how the limit stands, for [`Rule::standing`] to work out later.
    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.mark(state, now),
            Self::Gcra(rule) => rule.mark(state, now),
            Self::LeakyBucket(rule) => rule.mark(state, now),
            Self::FixedWindow(rule) => rule.mark(state, now),
            Self::SlidingWindow(rule) => rule.mark(state, now),
            Self::SlidingWindowCounter(rule) => rule.mark(state, now),
            Self::Budget(rule) => rule.mark(state, now),
            Self::Concurrency(rule) => rule.mark(state),
            Self::Adaptive(rule) => rule.mark(state),
            Self::Unlimited => Mark::default(),
        }
    }

    /// The capacity that an adaptive limit had found when the mark was made; none for others.
    pub(crate) fn found_capacity(&self, mark: Mark) -> Option<u64> {
        match self {
            Self::Adaptive(rule) => Some(rule.marked_capacity(mark)),
            _ => None,
        }
    }

    /// What a mark of this rule says.
    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        match self {
            Self::TokenBucket(rule) => rule.standing(mark),
            Self::Gcra(rule) => rule.standing(mark),
            Self::LeakyBucket(rule) => rule.standing(mark),
            Self::FixedWindow(rule) => rule.standing(mark),
            Self::SlidingWindow(rule) => rule.standing(mark),
            Self::SlidingWindowCounter(rule) => rule.standing(mark),
            Self::Budget(rule) => rule.standing(mark),
            Self::Concurrency(rule) => rule.standing(mark),
            Self::Adaptive(rule) => rule.standing(mark),
            Self::Unlimited => Standing {
                remaining: u64::MAX,
                reset_after: 0,
            },
        }
    }
}

impl Rule {
    /// Whether the state carries no information any more: from `now` on, at every later instant of both clocks, it
    /// decides as a row of zeros would, but for what an adaptive limit has learnt. Compares, and divides for calendar windows only.
    #[inline]
    pub(crate) fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let now = now.within_proven_range();
        match self {
            Self::TokenBucket(rule) => rule.is_replenished(state, now),
            Self::Gcra(rule) => rule.is_replenished(state, now),
            Self::LeakyBucket(rule) => rule.is_replenished(state, now),
            Self::FixedWindow(rule) => rule.is_replenished(state, now),
            Self::SlidingWindow(rule) => rule.is_replenished(state, now),
            Self::SlidingWindowCounter(rule) => rule.is_replenished(state, now),
            Self::Budget(rule) => rule.is_replenished(state, now),
            Self::Concurrency(rule) => rule.is_replenished(state),
            Self::Adaptive(rule) => rule.is_replenished(state),
            Self::Unlimited => true,
        }
    }

    /// Tells an adaptive limit how the work fared whose units are given back. Does nothing for others, and stores six
    /// words at most.
    #[inline]
    pub(crate) fn observe(&self, state: &mut (impl StateMut + ?Sized), now: Now, sample: Sample) {
        if let Self::Adaptive(rule) = self {
            rule.observe(state, now.within_proven_range(), sample);
        }
    }

    /// What [`is_near`](Self::is_near) compares with, for a share of the capacity (of the burst, where there is one)
    /// of `percent`, from 1 to 100.
    pub(crate) fn near_threshold(&self, percent: u8) -> NearThreshold {
        match self {
            Self::TokenBucket(rule) => rule.bound().near_threshold(percent),
            Self::Gcra(rule) => rule.bound().near_threshold(percent),
            Self::LeakyBucket(rule) => rule.bound().near_threshold(percent),
            Self::FixedWindow(rule) => rule.near_threshold(percent),
            Self::SlidingWindow(rule) => rule.near_threshold(percent),
            Self::SlidingWindowCounter(rule) => rule.near_threshold(percent),
            Self::Budget(rule) => rule.near_threshold(percent),
            Self::Concurrency(rule) => rule.near_threshold(percent),
            Self::Adaptive(_) => Adaptive::near_threshold(percent),
            Self::Unlimited => NearThreshold::NEVER,
        }
    }

    /// Whether a limit that stood at `mark` had used at least the share that the threshold was made for. An overdrawn
    /// limit had; one without a capacity never has.
    #[inline]
    pub(crate) fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        match self {
            Self::TokenBucket(_) | Self::Gcra(_) | Self::LeakyBucket(_) => mark.wide() >= threshold.0,
            Self::Adaptive(rule) => rule.is_near(mark, threshold),
            Self::Unlimited => false,
            _ => u128::from(mark.first) >= threshold.0,
        }
    }

    /// How much of the limit was used where it stood at `mark`, in parts of 2^32, rounded up: of the burst, or of what a
    /// window may hold. Zero for what is only held, and where there is no capacity.
    pub(crate) fn share(&self, mark: Mark) -> u64 {
        match self {
            Self::TokenBucket(rule) => rule.bound().share(mark),
            Self::Gcra(rule) => rule.bound().share(mark),
            Self::LeakyBucket(rule) => rule.bound().share(mark),
            Self::FixedWindow(rule) => rule.share(mark),
            Self::SlidingWindow(rule) => rule.share(mark),
            Self::SlidingWindowCounter(rule) => rule.share(mark),
            Self::Budget(rule) => rule.share(mark),
            Self::Concurrency(_) | Self::Adaptive(_) | Self::Unlimited => 0,
        }
    }

    /// The same rule with another capacity. A fixed, sliding or counted window stays as it is cut, with as many entries and
    /// buckets; `terms` say what becomes of the price and the burst of the others.
    pub(crate) fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        if capacity == 0 {
            return Err(InvalidLimit::Zero("capacity"));
        }
        let per_window = terms.rate.unwrap_or(capacity);
        let burst = terms.burst.unwrap_or(capacity);
        Ok(match *self {
            Self::TokenBucket(_) => Self::TokenBucket(TokenBucket::new(per_window, terms.window, burst)?),
            Self::Gcra(_) => Self::Gcra(Gcra::new(per_window, terms.window, burst)?),
            Self::LeakyBucket(_) => Self::LeakyBucket(LeakyBucket::new(per_window, terms.window, burst)?),
            Self::FixedWindow(rule) => Self::FixedWindow(rule.with_capacity(capacity)),
            Self::SlidingWindow(rule) => Self::SlidingWindow(rule.with_capacity(capacity)),
            Self::SlidingWindowCounter(rule) => Self::SlidingWindowCounter(rule.with_capacity(capacity)),
            Self::Budget(rule) => Self::Budget(rule.with_capacity(capacity)),
            Self::Concurrency(_) => Self::Concurrency(Concurrency::new(capacity)?),
            Self::Adaptive(_) | Self::Unlimited => *self,
        })
    }

    /// Whether the state of a limit that was declared as `old` can go on as this rule's: the same algorithm, as many
    /// words, windows cut in the same way, and no shorter window for the sliding window counter.
    pub(crate) fn can_carry_over(&self, old: &Self) -> bool {
        match (self, old) {
            (Self::FixedWindow(new), Self::FixedWindow(old)) => new.can_carry_over(old),
            (Self::SlidingWindow(new), Self::SlidingWindow(old)) => new.can_carry_over(old),
            (Self::SlidingWindowCounter(new), Self::SlidingWindowCounter(old)) => new.can_carry_over(old),
            (Self::Budget(new), Self::Budget(old)) => new.can_carry_over(old),
            (Self::Adaptive(new), Self::Adaptive(old)) => new.can_carry_over(old),
            _ => mem::discriminant(self) == mem::discriminant(old),
        }
    }

    /// Rewrites the state of a limit that was declared as `old` and is this from `now` on. Where
    /// [`can_carry_over`](Self::can_carry_over) says no, nothing sensible comes of it.
    ///
    /// What was there stays, and nothing is granted for the past. Backlog rules keep what remains, at most the new
    /// burst, and refill at the new rate from now on. Windows keep what they count now, against the new capacity, and
    /// for at least as long as the old and the new window would. What is in use stays in use, and an adaptive limit's
    /// estimate stays where it is, between the new floor and ceiling.
    ///
    /// Stores nothing where only the capacity of a window changes, and 62 words at most.
    pub(crate) fn carry_over(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let now = now.within_proven_range();
        if self == old {
            return;
        }
        match (self, old) {
            (Self::TokenBucket(new), Self::TokenBucket(old)) => new.carry_over(old, state, now),
            (Self::Gcra(new), Self::Gcra(old)) => new.carry_over(old, state, now),
            (Self::LeakyBucket(new), Self::LeakyBucket(old)) => new.carry_over(old, state, now),
            (Self::FixedWindow(new), Self::FixedWindow(old)) => new.carry_over(old, state, now),
            (Self::SlidingWindow(new), Self::SlidingWindow(old)) => new.carry_over(old, state, now),
            (Self::SlidingWindowCounter(new), Self::SlidingWindowCounter(old)) => {
                new.carry_over(old, state, now);
            }
            (Self::Budget(new), Self::Budget(old)) => new.carry_over(old, state, now),
            (Self::Adaptive(new), Self::Adaptive(old)) => new.carry_over(old, state),
            _ => {}
        }
    }
}
