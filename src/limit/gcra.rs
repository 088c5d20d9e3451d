//! The generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.0): one number, the theoretical arrival time.

use super::{Assessment, InvalidLimit, Mark, Now, Standing, State, StateMut};
use crate::units::{LATEST_INSTANT, UnitPrice};

/// `capacity` units per window, of which up to `burst` may come at once.
///
/// State: the theoretical arrival time, scaled by the price's denominator, low word first. At or before now, the
/// limit is completely replenished; the distance from now to it is the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gcra {
    price: UnitPrice,
    burst: u64,
    /// The backlog that leaves nothing: `burst` units.
    tolerance: u128,
}

impl Gcra {
    pub(crate) const STATE_WORDS: usize = 2;

    pub(crate) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        if capacity == 0 {
            return Err(InvalidLimit::Zero("capacity"));
        }
        if burst == 0 {
            return Err(InvalidLimit::Zero("burst"));
        }
        let price = UnitPrice::new(capacity, window).ok_or(InvalidLimit::Zero("window"))?;
        let tolerance = price.scaled_cost(burst);
        // An admitted arrival time is at most now + tolerance, and one more cost of at most `burst` is added to
        // it before the comparison: all of that has to fit.
        tolerance
            .checked_mul(2)
            .and_then(|doubled| doubled.checked_add(price.scaled_nanos(LATEST_INSTANT)))
            .ok_or(InvalidLimit::TooLarge("the theoretical arrival time"))?;
        Ok(Self { price, burst, tolerance })
    }

    pub(crate) fn most_at_once(&self) -> u64 {
        self.burst
    }

    pub(crate) fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        let needed = self.backlog(state, now).saturating_add(self.price.scaled_cost(cost));
        match needed.checked_sub(self.tolerance) {
            None | Some(0) => Assessment::Admissible,
            Some(excess) => Assessment::Refused { retry_after: Some(self.price.nanos_to_cover(excess)) },
        }
    }

    pub(crate) fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        let from = arrival(state).max(self.price.scaled_nanos(now.monotonic));
        set_arrival(state, from.saturating_add(self.price.scaled_cost(cost)));
    }

    /// Gives `amount` back; never above capacity, because an arrival time in the past counts as now.
    pub(crate) fn refund(&self, state: &mut (impl StateMut + ?Sized), amount: u64) -> u64 {
        set_arrival(state, arrival(state).saturating_sub(self.price.scaled_cost(amount)));
        amount
    }

    pub(crate) fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        let backlog = self.backlog(state, now);
        Mark { first: backlog as u64, second: (backlog >> 64) as u64 }
    }

    pub(crate) fn standing(&self, mark: Mark) -> Standing {
        let backlog = u128::from(mark.first) | (u128::from(mark.second) << 64);
        Standing {
            remaining: self.price.whole_units(self.tolerance.saturating_sub(backlog)),
            reset_after: self.price.nanos_to_cover(backlog),
        }
    }

    fn backlog(&self, state: &(impl State + ?Sized), now: Now) -> u128 {
        arrival(state).saturating_sub(self.price.scaled_nanos(now.monotonic))
    }
}

fn arrival(state: &(impl State + ?Sized)) -> u128 {
    u128::from(state.load(0)) | (u128::from(state.load(1)) << 64)
}

fn set_arrival(state: &mut (impl StateMut + ?Sized), value: u128) {
    state.store(0, value as u64);
    state.store(1, (value >> 64) as u64);
}
