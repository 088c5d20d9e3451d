//! What part of a rate hosts can use, given the burst and how long the store takes to answer.

use super::Leased;
use super::pacing::JITTER;
use crate::units::saturate;

/// The whole of a rate, in thousandths.
const WHOLE: u64 = 1000;

impl Leased {
    /// What part of the rate hosts can use, in thousandths, if the store answers after `round_trip` nanoseconds; `None`
    /// if units do not come back evenly.
    ///
    /// What was spent begins to come back when it is reported. While one part of the burst comes back, hosts spend
    /// another, so half of it is used between two answers. A lease that has nearly ended when it arrives is of little use.
    pub(crate) fn usable_part(&self, round_trip: u64) -> Option<u64> {
        let by_burst = u128::from(self.replenished_in()?) * u128::from(WHOLE)
            / u128::from(self.between_answers(round_trip).saturating_mul(2).max(1));
        let half = (self.length() / 2).max(1);
        let by_lease =
            u128::from(self.length().saturating_sub(round_trip)) * u128::from(WHOLE) / u128::from(half);
        Some(saturate(by_burst.min(by_lease)).min(WHOLE))
    }

    /// The least burst with which all of the rate can be used, in units; `None` if they do not come back evenly.
    pub(crate) fn sufficient_burst(&self, round_trip: u64) -> Option<u64> {
        self.replenished_in()?;
        let nanos = self.between_answers(round_trip).saturating_mul(2);
        // What comes back meanwhile, rounded up.
        let units = self.price.whole_units(self.price.scaled_nanos(nanos));
        Some(units.saturating_add(1))
    }

    /// How much time passes between two answers to a host that runs short.
    fn between_answers(&self, round_trip: u64) -> u64 {
        let pace = self.pace();
        // The mean of its jitter.
        (pace + pace / JITTER / 2).saturating_add(round_trip)
    }
}
