//! The generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.0): one number, the theoretical arrival time.

use super::backlog::BacklogBound;
use super::{Assessment, InvalidLimit, Mark, Now, Standing, State, StateMut, load_wide, store_wide};
use crate::units::{LATEST_INSTANT, Rounding};

/// `capacity` units per window, of which up to `burst` may come at once.
///
/// State, two words: the theoretical arrival time, scaled by the price's denominator, low word first. At or before
/// now, the limit is completely replenished; the distance from now to it is the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gcra {
    bound: BacklogBound,
}

impl Gcra {
    const ARRIVAL: usize = 0;

    pub(crate) const STATE_WORDS: usize = 2;

    /// `window` is in nanoseconds.
    pub(crate) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        let bound = BacklogBound::new(capacity, window, burst)?;
        // An admitted arrival time is at most now + burst, which must be an exact number at the latest instant too.
        bound
            .most()
            .checked_add(bound.price().scaled_nanos(LATEST_INSTANT))
            .ok_or(InvalidLimit::TooLarge("the theoretical arrival time"))?;
        Ok(Self { bound })
    }

    pub(crate) fn most_at_once(&self) -> u64 {
        self.bound.burst()
    }

    #[inline]
    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        self.bound.assess(self.backlog(state, now), cost)
    }

    /// Saturates at 2^128 - 1 scaled, which only an overdraft worth more than 292 years of backlog can reach.
    #[inline]
    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        if cost == 0 {
            return;
        }
        let from = load_wide(state, Self::ARRIVAL).max(self.bound.price().scaled_nanos(now.monotonic));
        store_wide(
            state,
            Self::ARRIVAL,
            from.saturating_add(self.bound.price().scaled_cost(cost)),
        );
    }

    /// As a charge `delay` nanoseconds from now.
    pub(super) fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        let monotonic = now.monotonic.saturating_add(delay);
        self.charge(state, Now { monotonic, ..now }.within_proven_range(), cost);
    }

    /// Assesses, and charges if admissible, reading the state once.
    #[inline]
    pub(crate) fn take(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        cost: u64,
    ) -> Result<Mark, Assessment> {
        let present = self.bound.price().scaled_nanos(now.monotonic);
        let arrival = load_wide(state, Self::ARRIVAL);
        let backlog = arrival.saturating_sub(present);
        match self.bound.assess(backlog, cost) {
            Assessment::Admissible if cost == 0 => Ok(BacklogBound::mark(backlog)),
            Assessment::Admissible => {
                // What was assessed as admissible fits below the bound that the declaration was checked for.
                let added = self.bound.price().scaled_cost(cost);
                store_wide(state, Self::ARRIVAL, arrival.max(present).saturating_add(added));
                Ok(BacklogBound::mark(backlog.saturating_add(added)))
            }
            refused => Err(refused),
        }
    }

    /// The whole units that came back: less than `amount` where time had replenished some of them already.
    pub(super) fn refund(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        amount: u64,
        left: u128,
    ) -> u64 {
        let (taken_off, units) = self.bound.refundable(self.backlog(state, now), amount, left);
        if taken_off > 0 {
            // A part of the distance from now to the arrival time, so it cannot exceed the arrival time.
            store_wide(
                state,
                Self::ARRIVAL,
                load_wide(state, Self::ARRIVAL).saturating_sub(taken_off),
            );
        }
        units
    }

    pub(super) fn bound(&self) -> &BacklogBound {
        &self.bound
    }

    #[inline]
    pub(super) fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        load_wide(state, Self::ARRIVAL) <= self.bound.price().scaled_nanos(now.monotonic)
    }

    pub(super) fn carry_over(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let backlog = self
            .bound
            .carried_over(&old.bound, old.backlog(state, now), Rounding::Up);
        let present = self.bound.price().scaled_nanos(now.monotonic);
        store_wide(state, Self::ARRIVAL, present.saturating_add(backlog));
    }

    pub(crate) fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        store_wide(state, Self::ARRIVAL, 0);
    }

    #[inline]
    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        BacklogBound::mark(self.backlog(state, now))
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        self.bound.standing(mark)
    }

    #[inline]
    fn backlog(&self, state: &(impl State + ?Sized), now: Now) -> u128 {
        load_wide(state, Self::ARRIVAL).saturating_sub(self.bound.price().scaled_nanos(now.monotonic))
    }
}
