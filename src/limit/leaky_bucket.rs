//! The leaky bucket as a meter (ITU-T I.371's continuous-state leaky bucket): a level that drains at a constant rate.

use super::backlog::BacklogBound;
use super::{Assessment, InvalidLimit, Mark, Now, Standing, State, StateMut, load_wide, store_wide};
use crate::units::Rounding;

/// A bucket of size `burst` that drains `capacity` units per window and refuses what would make it overflow.
///
/// State, three words: the level at the last charge (scaled by the price's denominator, low word first) and the
/// instant of that charge in nanoseconds. Looking writes nothing, and the level is only ever drained by whole elapsed
/// nanoseconds at an exact rate: asking often does not slow it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakyBucket {
    bound: BacklogBound,
}

impl LeakyBucket {
    const LEVEL: usize = 0;
    const SINCE: usize = 2;

    pub(crate) const STATE_WORDS: usize = 3;

    /// `window` is in nanoseconds. Any three positive words can be declared.
    pub(crate) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        Ok(Self {
            bound: BacklogBound::new(capacity, window, burst)?,
        })
    }

    pub(crate) fn most_at_once(&self) -> u64 {
        self.bound.burst()
    }

    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        self.bound.assess(self.level(state, now), cost)
    }

    /// Saturates at 2^128 - 1 scaled, which only overdrafts worth more than 584 years of draining can reach.
    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        self.charge_ahead(state, now, 0, cost);
    }

    /// As a charge `delay` nanoseconds from now. What would have drained by then does not make room before.
    #[inline]
    pub(super) fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let level = self
            .level(state, now)
            .max(self.bound.price().scaled_nanos(delay))
            .saturating_add(self.bound.price().scaled_cost(cost));
        self.set_level(state, now, level);
    }

    /// Takes up to `amount` units, and no more than `left`, out again. The leaky bucket does not refund; the token bucket, its mirror, does.
    pub(super) fn take_out(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        amount: u64,
        left: u128,
    ) -> u64 {
        let level = self.level(state, now);
        let (taken_off, units) = self.bound.refundable(level, amount, left);
        if taken_off > 0 {
            self.set_level(state, now, level - taken_off);
        }
        units
    }

    pub(super) fn bound(&self) -> &BacklogBound {
        &self.bound
    }

    #[inline]
    pub(super) fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.level(state, now) == 0
    }

    pub(super) fn carry_over(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let level = self
            .bound
            .carried_over(&old.bound, old.level(state, now), Rounding::Up);
        self.set_level(state, now, level);
    }

    pub(crate) fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        // An empty bucket has nothing to drain, so the instant may stay.
        store_wide(state, Self::LEVEL, 0);
    }

    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        BacklogBound::mark(self.level(state, now))
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        self.bound.standing(mark)
    }

    #[inline]
    fn level(&self, state: &(impl State + ?Sized), now: Now) -> u128 {
        let elapsed = now.monotonic.saturating_sub(state.load(Self::SINCE));
        load_wide(state, Self::LEVEL).saturating_sub(self.bound.price().scaled_nanos(elapsed))
    }

    fn set_level(&self, state: &mut (impl StateMut + ?Sized), now: Now, level: u128) {
        store_wide(state, Self::LEVEL, level);
        // Never earlier than before: time that was drained once must not drain again.
        state.store(Self::SINCE, now.monotonic.max(state.load(Self::SINCE)));
    }
}
