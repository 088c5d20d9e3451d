//! How an estimate is written down.

/// An estimate is a number of these parts of a unit.
pub(super) const ONE: u64 = 1 << 24;

/// Whether so few units were in flight that nothing was learnt about what lies at the estimate: less than half of it.
pub(super) fn is_far_below(in_flight: u64, estimate: u64) -> bool {
    2 * u128::from(in_flight) * u128::from(ONE) < u128::from(estimate)
}
