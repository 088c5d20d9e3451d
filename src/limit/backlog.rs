//! GCRA, the token bucket and the leaky bucket: one rule with one state.

use super::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, NearThreshold, Now, RuleOperations, Standing,
    State, StateMut, load_wide, store_wide,
};
use crate::units::{LATEST_INSTANT, Rounding, UnitPrice, share};

/// `capacity` units per window, of which up to `burst` may come at once.
///
/// The backlog is what the admitted units are still worth in time: each unit adds its price, each nanosecond takes
/// one away, and it never drops below zero. All backlogs here are scaled by the price's denominator. GCRA (ITU-T
/// I.371, ATM Forum TM 4.0) calls it the distance to the theoretical arrival time; a leaky bucket used as a meter
/// (I.371's continuous-state leaky bucket) calls it the level; a token bucket (RFC 3290, appendix A) the missing
/// tokens. All three admit the same.
///
/// State, two words: the theoretical arrival time, scaled, low word first. If it is not after now, the limit is fully
/// replenished; otherwise the backlog is the distance from now to it. Reading writes nothing, so asking often does
/// not slow replenishment down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backlog {
    price: UnitPrice,
    burst: u64,
    /// The backlog at which nothing remains: `burst` units.
    max: u128,
}

impl Backlog {
    const ARRIVAL: usize = 0;

    /// `window` is in nanoseconds.
    ///
    /// An admitted arrival time is at most now + burst, and that must still be an exact number at the latest instant.
    /// This holds for any burst in windows of up to [`LATEST_INSTANT`] nanoseconds, and for bursts of up to 2^63 units in
    /// longer ones.
    pub(crate) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        InvalidLimit::unless_positive(burst, "burst")?;
        let price = UnitPrice::new(capacity, window).ok_or(InvalidLimit::Zero("window"))?;
        let max = price.whole_units(u128::MAX - price.scaled_nanos(LATEST_INSTANT));
        if burst > max {
            return Err(InvalidLimit::InexactBurst { given: burst, max });
        }
        Ok(Self {
            price,
            burst,
            max: price.scaled_cost(burst),
        })
    }

    /// What a unit is worth in time.
    pub(super) fn price(&self) -> UnitPrice {
        self.price
    }

    #[inline]
    fn backlog(&self, state: &(impl State + ?Sized), now: Now) -> u128 {
        load_wide(state, Self::ARRIVAL).saturating_sub(self.price.scaled_nanos(now.monotonic))
    }

    /// How the limit stands after charging `cost`, or `None` if it does not fit. Nothing is stored: see
    /// [`state_at`](Self::state_at).
    #[inline(always)]
    pub(crate) fn mark_if_admitted(
        &self,
        state: &(impl State + ?Sized),
        now: Now,
        cost: u64,
    ) -> Option<Mark> {
        let backlog = self
            .backlog(state, now)
            .checked_add(self.price.scaled_cost(cost))?;
        (backlog <= self.max).then(|| Mark::of_wide(backlog))
    }

    /// The state for a mark that was admitted at `now`.
    #[inline(always)]
    pub(crate) fn state_at(&self, now: Now, mark: Mark) -> [u64; 2] {
        // Cannot wrap: whatever was admitted fits below the bound checked at declaration, even at the latest instant.
        let arrival = self.price.scaled_nanos(now.monotonic).wrapping_add(mark.wide());
        [arrival as u64, (arrival >> 64) as u64]
    }

    /// [`take`](RuleOperations::take) without working out the assessment of a refusal.
    #[inline(always)]
    pub(crate) fn take_if_admitted(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        cost: u64,
    ) -> Option<Mark> {
        let mark = self.mark_if_admitted(state, now, cost)?;
        if cost > 0 {
            state.store_pair(Self::ARRIVAL, self.state_at(now, mark));
        }
        Some(mark)
    }

    #[inline(always)]
    fn assess_backlog(&self, backlog: u128, cost: u64) -> Assessment {
        // The largest backlog on top of which the cost still fits. A cost above the burst has none.
        let Some(admitting) = self.max.checked_sub(self.price.scaled_cost(cost)) else {
            return Assessment::Refused { retry_after: None };
        };
        match backlog.checked_sub(admitting) {
            None | Some(0) => Assessment::Admissible,
            Some(excess) => Assessment::Refused {
                retry_after: Some(self.price.nanos_to_cover(excess)),
            },
        }
    }

    /// How much of a charge time has not replenished yet. Time works off what was there before the charge first; if
    /// that is unknown, it is taken to be nothing.
    pub(super) fn left(&self, now: Now, charge: &Charge) -> u128 {
        let charged = self.price.scaled_cost(charge.cost);
        let after = self.price.scaled_cost(charge.units_after);
        let elapsed = now.monotonic.saturating_sub(charge.instant);
        charge
            .mark
            .map_or(charged, |mark| mark.wide().saturating_sub(after))
            .saturating_sub(self.price.scaled_nanos(elapsed))
            .min(charged)
    }

    /// The backlog under this rule that leaves as many units, to the fraction, as `backlog` left under `old`, but
    /// never more than the burst. An overdraft stays an overdraft of as many units. `rounding` says where a fraction
    /// of the scale goes: rounding up, the caller loses it.
    fn migrated(&self, old: &Self, backlog: u128, rounding: Rounding) -> u128 {
        match old.max.checked_sub(backlog) {
            Some(free) => {
                let free = self.price.converted(free, old.price, rounding.opposite());
                self.max.saturating_sub(free)
            }
            None => {
                let overdraft = backlog.saturating_sub(old.max);
                let overdraft = self.price.converted(overdraft, old.price, rounding);
                self.max.saturating_add(overdraft)
            }
        }
    }
}

impl RuleOperations for Backlog {
    fn state_words(&self) -> usize {
        2
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        self.assess_backlog(self.backlog(state, now), cost)
    }

    /// Reads the state once.
    #[inline]
    fn assess_and_mark(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> (Assessment, Mark) {
        let backlog = self.backlog(state, now);
        (self.assess_backlog(backlog, cost), Mark::of_wide(backlog))
    }

    /// Saturates at 2^128 - 1 scaled, which only an overdraft worth more than 292 years of backlog can reach.
    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        if cost == 0 {
            return;
        }
        let from = load_wide(state, Self::ARRIVAL).max(self.price.scaled_nanos(now.monotonic));
        store_wide(
            state,
            Self::ARRIVAL,
            from.saturating_add(self.price.scaled_cost(cost)),
        );
    }

    fn reaches_ahead(&self) -> bool {
        true
    }

    /// The time until then counts as used, too, so it makes no room for other costs.
    fn charge_ahead(&self, state: &mut (impl StateMut + ?Sized), now: Now, delay: u64, cost: u64) {
        let monotonic = now.monotonic.saturating_add(delay);
        self.charge(state, Now { monotonic, ..now }.within_proven_range(), cost);
    }

    #[inline(always)]
    fn take(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> Result<Mark, Assessment> {
        let taken = self.take_if_admitted(state, now, cost);
        taken.ok_or_else(|| self.assess(state, now, cost))
    }

    /// When the last unit is taken, the whole amount is part of the backlog, less what time has worked off since now.
    fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        let charged = self
            .backlog(state, now)
            .saturating_add(self.price.scaled_cost(amount));
        self.price.nanos_to_cover(charged.saturating_sub(self.max))
    }

    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        // Time may have replenished part of the charge already. That part is not given back twice, so nothing rises
        // above the burst.
        let max = self.backlog(state, now).min(self.left(now, charge));
        let asked = self.price.scaled_cost(unused);
        let (taken_off, units) = if asked <= max {
            (asked, unused)
        } else {
            (max, self.price.whole_units(max))
        };
        if taken_off > 0 {
            // At most the distance from now to the arrival time, so it cannot exceed the arrival time.
            let arrival = load_wide(state, Self::ARRIVAL).saturating_sub(taken_off);
            store_wide(state, Self::ARRIVAL, arrival);
        }
        units
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        store_wide(state, Self::ARRIVAL, 0);
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        Mark::of_wide(self.backlog(state, now))
    }

    fn standing(&self, mark: Mark) -> Standing {
        let backlog = mark.wide();
        Standing {
            remaining: self.price.whole_units(self.max.saturating_sub(backlog)),
            reset_after: self.price.nanos_to_cover(backlog),
        }
    }

    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        load_wide(state, Self::ARRIVAL) <= self.price.scaled_nanos(now.monotonic)
    }

    fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(self.max, percent)
    }

    #[inline]
    fn is_near(&self, mark: Mark, threshold: NearThreshold) -> bool {
        mark.wide() >= threshold.0
    }

    fn share(&self, mark: Mark) -> u64 {
        share(mark.wide(), self.max)
    }

    fn with_capacity(&self, capacity: u64, terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        let per_window = terms.rate.unwrap_or(capacity);
        let burst = terms.burst.unwrap_or(capacity);
        Self::new(per_window, terms.window, burst)
    }

    /// What remains is kept, up to the new burst. From now on, the limit is replenished at the new rate.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let backlog = self.migrated(old, old.backlog(state, now), Rounding::Up);
        let present = self.price.scaled_nanos(now.monotonic);
        store_wide(state, Self::ARRIVAL, present.saturating_add(backlog));
    }
}
