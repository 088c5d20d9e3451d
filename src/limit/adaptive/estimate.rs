//! The fixed-point form of an estimate.

/// One unit of an estimate.
pub(super) const ONE: u64 = 1 << 24;

/// Whether less than half of the estimate was in flight, which is too little to learn anything about the estimate.
pub(super) fn is_far_below(in_flight: u64, estimate: u64) -> bool {
    2 * u128::from(in_flight) * u128::from(ONE) < u128::from(estimate)
}
