//! Exact integer arithmetic shared by the rules: nanoseconds, costs, and the reduced fraction that relates them. Also
//! the shape of a bucket of keys, which the layout of the file and the rules of the table share.

use std::time::Duration;

/// Rows of a bucket in a keyed table. Their tags fill one cache line.
pub(crate) const BUCKET_ROWS: u64 = 32;

/// Row tags in one word, starting with the lowest bits.
pub(crate) const WORD_TAGS: u64 = 4;

/// Words of tags in a bucket.
pub(crate) const BUCKET_TAG_WORDS: u64 = BUCKET_ROWS / WORD_TAGS;

pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The latest instant the rules are proven for: 2^63 nanoseconds, about 292 years.
///
/// Parameters are checked against it at declaration, so that no product formed later can exceed 128 bits.
pub(crate) const LATEST_INSTANT: u64 = 1 << 63;

/// The nanoseconds of a duration, or `None` if they exceed 64 bits.
pub(crate) fn nanos_from_duration(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_nanos()).ok()
}

/// The price of one cost unit in time: `numerator / denominator` nanoseconds, in lowest terms.
///
/// With a capacity of `c` units per window of `w` nanoseconds, one unit is worth `w / c` nanoseconds. It is kept as a
/// reduced fraction, so that instants scaled by the denominator are whole numbers and nothing drifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitPrice {
    numerator: u64,
    denominator: u64,
}

impl UnitPrice {
    /// The price of one of `capacity` units spread over `window` nanoseconds; `None` if either is zero.
    pub(crate) fn new(capacity: u64, window: u64) -> Option<Self> {
        if capacity == 0 || window == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(capacity, window);
        Some(Self {
            numerator: window / divisor,
            denominator: capacity / divisor,
        })
    }

    /// The scaled time that `units` are worth: nanoseconds times the denominator. Never overflows.
    #[inline]
    pub(crate) fn scaled_cost(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.numerator)
    }

    /// `nanos` scaled by the denominator. Never overflows.
    #[inline]
    pub(crate) fn scaled_nanos(self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.denominator)
    }

    /// Whole nanoseconds that cover a scaled time, rounded up, so that nothing is due early.
    pub(crate) fn nanos_to_cover(self, scaled: u128) -> u64 {
        saturate(divide(scaled, self.denominator, Rounding::Up))
    }

    /// Whole units that a scaled time is worth, rounded down.
    pub(crate) fn whole_units(self, scaled: u128) -> u64 {
        saturate(divide(scaled, self.numerator, Rounding::Down))
    }

    /// The scaled time that is worth as many units at this price, to the fraction, as `scaled` is at the price
    /// `from`.
    pub(crate) fn converted(self, scaled: u128, from: Self, rounding: Rounding) -> u128 {
        multiply_divide(scaled, self.numerator, from.numerator, rounding)
    }
}

/// Which way to round a quotient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

impl Rounding {
    /// For the amount to be subtracted from something that is itself rounded like `self`.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// Division of 128 by 64 bits that uses the much faster 64-bit instruction if the dividend allows it.
///
/// Panics if the divisor is zero, like any division: the parameters used as divisors are positive.
#[inline]
pub(crate) fn divide(dividend: u128, divisor: u64, rounding: Rounding) -> u128 {
    match u64::try_from(dividend) {
        Ok(small) if rounding == Rounding::Up => u128::from(small.div_ceil(divisor)),
        Ok(small) => u128::from(small / divisor),
        Err(_) if rounding == Rounding::Up => dividend.div_ceil(u128::from(divisor)),
        Err(_) => dividend / u128::from(divisor),
    }
}

/// `value * factor / divisor`, computed in 192 bits; the largest number if the quotient exceeds 128 bits.
///
/// Panics if the divisor is zero, like any division.
pub(crate) fn multiply_divide(value: u128, factor: u64, divisor: u64, rounding: Rounding) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (factor, divisor) = (u128::from(factor), u128::from(divisor));
    let low = (value & LOW) * factor;
    // At most (2^64 - 1)^2 plus a carry of 64 bits, which still fits.
    let high = (value >> 64) * factor + (low >> 64);
    // Long division, a word at a time: the remainder carried down is below the divisor.
    let (first, carried) = (high / divisor, high % divisor);
    let rest = (carried << 64) | (low & LOW);
    let (second, remainder) = (rest / divisor, rest % divisor);
    if first > LOW {
        return u128::MAX;
    }
    let quotient = (first << 64) | second;
    if rounding == Rounding::Up && remainder > 0 {
        quotient.saturating_add(1)
    } else {
        quotient
    }
}

/// Whole milliseconds, rounded up, so that whoever waits that long does not come back too early; the largest number if
/// 64 bits cannot hold them.
pub(crate) fn milliseconds(wait: Duration) -> u64 {
    saturate(wait.as_nanos().div_ceil(1_000_000))
}

/// The share of `part` in `whole`, in parts of 2^32, rounded up; the largest number if it exceeds 64 bits.
///
/// Panics if `whole` is zero, like any division.
pub(crate) fn share(part: u128, whole: u128) -> u64 {
    const BITS: u32 = 32;
    if let Some(scaled) = part.checked_mul(1 << BITS) {
        return match u64::try_from(whole) {
            Ok(whole) => saturate(divide(scaled, whole, Rounding::Up)),
            Err(_) => saturate(scaled.div_ceil(whole)),
        };
    }
    // Long division, a bit at a time: the remainder is below `whole`, so its double is below twice that.
    let (mut quotient, mut remainder) = (part / whole, part % whole);
    for _ in 0..BITS {
        let overflows = remainder >> (u128::BITS - 1) != 0;
        remainder <<= 1;
        let fits = overflows || remainder >= whole;
        if fits {
            remainder = remainder.wrapping_sub(whole);
        }
        quotient = quotient.saturating_mul(2).saturating_add(u128::from(fits));
    }
    saturate(quotient.saturating_add(u128::from(remainder > 0)))
}

/// The value, or the largest 64-bit number if it does not fit.
pub(crate) fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

pub(crate) fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_is_in_lowest_terms() {
        let price = UnitPrice::new(2_000_000, 60 * NANOS_PER_SECOND).expect("both are positive");
        assert_eq!(
            price,
            UnitPrice {
                numerator: 30_000,
                denominator: 1
            }
        );
    }

    #[test]
    fn covering_time_rounds_up_and_units_round_down() {
        let price = UnitPrice::new(3, 10).expect("both are positive");
        assert_eq!(price.nanos_to_cover(price.scaled_cost(1)), 4);
        assert_eq!(price.whole_units(price.scaled_nanos(9)), 2);
    }

    #[test]
    fn a_product_may_exceed_128_bits_before_it_is_divided() {
        let (down, up) = (Rounding::Down, Rounding::Up);
        assert_eq!(multiply_divide(u128::MAX, 7, 7, down), u128::MAX);
        assert_eq!(multiply_divide(u128::MAX, 3, 4, down), u128::MAX / 4 * 3 + 2);
        assert_eq!(multiply_divide(u128::MAX, 3, 4, up), u128::MAX / 4 * 3 + 3);
        assert_eq!(multiply_divide(u128::MAX, u64::MAX, 1, down), u128::MAX);
        assert_eq!(multiply_divide(10, 2, 3, down), 6);
        assert_eq!(multiply_divide(10, 2, 3, up), 7);
        assert_eq!(multiply_divide(0, u64::MAX, u64::MAX, up), 0);
    }

    #[test]
    fn a_share_is_exact_however_large_its_parts_are() {
        assert_eq!(share(0, 1), 0);
        assert_eq!(share(1, 3), (1 << 32) / 3 + 1);
        assert_eq!(share(3, 3), 1 << 32);
        assert_eq!(share(1, u128::MAX), 1);
        assert_eq!(share(u128::MAX, u128::MAX), 1 << 32);
        assert_eq!(share(u128::MAX - 1, u128::MAX), 1 << 32);
        assert_eq!(share(u128::MAX / 4, u128::MAX), 1 << 30);
        assert_eq!(share(u128::MAX / 4 + 1, u128::MAX), (1 << 30) + 1);
        assert_eq!(share(u128::MAX, u128::MAX / 3), 3 << 32);
        assert_eq!(share(u128::MAX, 1), u64::MAX);
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        let price = UnitPrice::new(u64::MAX, u64::MAX - 1).expect("both are positive");
        assert_eq!(price.whole_units(price.scaled_cost(u64::MAX)), u64::MAX);
        assert_eq!(price.nanos_to_cover(price.scaled_nanos(u64::MAX)), u64::MAX);
    }
}
