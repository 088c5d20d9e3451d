//! The token bucket (RFC 3290, appendix A): tokens arrive at a constant rate, up to a size.

use super::backlog::BacklogBound;
use super::leaky_bucket::LeakyBucket;
use super::{Assessment, InvalidLimit, Mark, Now, Standing, State, StateMut};

/// A bucket of `burst` tokens, refilled with `capacity` tokens per window.
///
/// What is written down is not the tokens that are there but those that are missing. They refill as a leaky bucket
/// drains, so the state is a leaky bucket's: three words, zero is full, and an overdraft is simply more missing
/// tokens than the bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    missing: LeakyBucket,
}

impl TokenBucket {
    pub(crate) const STATE_WORDS: usize = LeakyBucket::STATE_WORDS;

    /// `window` is in nanoseconds. Any three positive words can be declared.
    pub(crate) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        Ok(Self {
            missing: LeakyBucket::new(capacity, window, burst)?,
        })
    }

    pub(crate) fn most_at_once(&self) -> u64 {
        self.missing.most_at_once()
    }

    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        self.missing.assess(state, now, cost)
    }

    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        self.missing.charge(state, now, cost);
    }

    /// As a charge `delay` nanoseconds from now.
    pub(super) fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        self.missing.charge_ahead(state, now, delay, cost);
    }

    /// The whole tokens that came back: less than `amount` where the refill had brought some of them already.
    pub(super) fn refund(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        amount: u64,
        left: u128,
    ) -> u64 {
        self.missing.take_out(state, now, amount, left)
    }

    pub(super) fn bound(&self) -> &BacklogBound {
        self.missing.bound()
    }

    #[inline]
    pub(super) fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.missing.is_replenished(state, now)
    }

    pub(super) fn carry_over(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        self.missing.carry_over(&old.missing, state, now);
    }

    pub(crate) fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        self.missing.reset(state);
    }

    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        self.missing.mark(state, now)
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        self.missing.standing(mark)
    }
}
