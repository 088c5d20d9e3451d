//! What GCRA, the token bucket and the leaky bucket have in common: a bound on work that was admitted ahead of time.

use super::{Assessment, InvalidLimit, Mark, NearThreshold, Standing};
use crate::units::{Rounding, UnitPrice, share};

/// `capacity` units per window, of which up to `burst` may come at once.
///
/// The backlog is the time that what was admitted is still worth: each unit adds its price, each nanosecond takes
/// one away, and it never goes below zero. All backlogs here are scaled by the price's denominator. The three rules
/// differ in how they write it down, not in what they admit: ITU-T I.371 gives GCRA in two forms for that reason,
/// virtual scheduling (an instant) and the continuous-state leaky bucket (a level and an instant).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BacklogBound {
    price: UnitPrice,
    burst: u64,
    /// The backlog that leaves nothing: `burst` units.
    most: u128,
}

impl BacklogBound {
    /// Never overflows: `most` is one product of two words, and nothing below forms a sum that exceeds a backlog.
    pub(super) fn new(capacity: u64, window: u64, burst: u64) -> Result<Self, InvalidLimit> {
        if capacity == 0 {
            return Err(InvalidLimit::Zero("capacity"));
        }
        if burst == 0 {
            return Err(InvalidLimit::Zero("burst"));
        }
        let price = UnitPrice::new(capacity, window).ok_or(InvalidLimit::Zero("window"))?;
        Ok(Self {
            price,
            burst,
            most: price.scaled_cost(burst),
        })
    }

    #[inline]
    pub(super) fn price(&self) -> UnitPrice {
        self.price
    }

    #[inline]
    pub(super) fn burst(&self) -> u64 {
        self.burst
    }

    /// The backlog of a completely used burst.
    #[inline]
    pub(super) fn most(&self) -> u128 {
        self.most
    }

    #[inline]
    pub(super) fn assess(&self, backlog: u128, cost: u64) -> Assessment {
        // The largest backlog on top of which the cost still fits; there is none for a cost above the burst.
        let Some(admitting) = self.most.checked_sub(self.price.scaled_cost(cost)) else {
            return Assessment::Refused { retry_after: None };
        };
        match backlog.checked_sub(admitting) {
            None | Some(0) => Assessment::Admissible,
            Some(excess) => Assessment::Refused {
                retry_after: Some(self.price.nanos_to_cover(excess)),
            },
        }
    }

    /// Nanoseconds before which `amount` units on top of a backlog cannot all have been taken, in whatever portions: by the
    /// last of them all are part of the backlog, but for what time has worked off since.
    pub(super) fn earliest(&self, backlog: u128, amount: u64) -> u64 {
        let charged = backlog.saturating_add(self.price.scaled_cost(amount));
        self.price.nanos_to_cover(charged.saturating_sub(self.most))
    }

    /// How much of `backlog` a refund of `amount` units takes away, scaled, and the whole units which that is worth:
    /// at most `left`, what is left of the reservation that is refunded.
    ///
    /// What time has already replenished is not given back a second time, so nothing rises above the burst.
    pub(super) fn refundable(&self, backlog: u128, amount: u64, left: u128) -> (u128, u64) {
        let asked = self.price.scaled_cost(amount);
        let most = backlog.min(left);
        if asked <= most {
            (asked, amount)
        } else {
            (most, self.price.whole_units(most))
        }
    }

    /// What is left, scaled, of a cost that was charged on top of a backlog, `elapsed` nanoseconds after the charge
    /// left the backlog at `mark`. Time works off what was there before first; where that is not known, it is taken for
    /// nothing.
    pub(super) fn left(&self, mark: Option<Mark>, elapsed: u64, cost: u64) -> u128 {
        let charged = self.price.scaled_cost(cost);
        mark.map_or(charged, Mark::wide)
            .saturating_sub(self.price.scaled_nanos(elapsed))
            .min(charged)
    }

    /// The mark before the last `units` of its charge.
    pub(super) fn mark_before_last(&self, mark: Mark, units: u64) -> Mark {
        Self::mark(mark.wide().saturating_sub(self.price.scaled_cost(units)))
    }

    /// As [`left`](Self::left), of a cost that was charged under a `former` bound, with its mark, `before` nanoseconds
    /// before this one came in its place, which was `since` nanoseconds ago.
    ///
    /// The end of the charge is carried over as a backlog is that ends there, so what is given back is what would have
    /// been given back at the change, less what time has replenished since.
    pub(super) fn left_of_former(
        &self,
        former: &Self,
        mark: Option<Mark>,
        (before, since): (u64, u64),
        cost: u64,
    ) -> u128 {
        let charged = former.price.scaled_cost(cost);
        let end = mark
            .map_or(charged, Mark::wide)
            .saturating_sub(former.price.scaled_nanos(before));
        let left = self
            .price
            .converted(end.min(charged), former.price, Rounding::Down);
        self.carried_over(former, end, Rounding::Down)
            .saturating_sub(self.price.scaled_nanos(since))
            .min(left)
    }

    pub(super) fn near_threshold(&self, percent: u8) -> NearThreshold {
        NearThreshold::share_of(self.most, percent)
    }

    /// The share of the burst that a backlog is.
    pub(super) fn share(&self, mark: Mark) -> u64 {
        share(mark.wide(), self.most)
    }

    /// The backlog under this bound that leaves what `backlog` left under an `old` one, the same number of units to
    /// the fraction, but never more than the burst. An overdraft stays one of as many units. `rounding` says where a
    /// fraction of the scale goes: up, it is lost to the caller.
    pub(super) fn carried_over(&self, old: &Self, backlog: u128, rounding: Rounding) -> u128 {
        match old.most.checked_sub(backlog) {
            Some(free) => {
                let free = self.price.converted(free, old.price, rounding.opposite());
                self.most.saturating_sub(free)
            }
            None => {
                let overdraft = backlog.saturating_sub(old.most);
                let overdraft = self.price.converted(overdraft, old.price, rounding);
                self.most.saturating_add(overdraft)
            }
        }
    }

    #[inline]
    pub(super) fn mark(backlog: u128) -> Mark {
        Mark {
            first: backlog as u64,
            second: (backlog >> 64) as u64,
        }
    }

    pub(super) fn standing(&self, mark: Mark) -> Standing {
        let backlog = mark.wide();
        Standing {
            remaining: self.price.whole_units(self.most.saturating_sub(backlog)),
            reset_after: self.price.nanos_to_cover(backlog),
        }
    }
}
