//! Amounts as people write them, and their exact conversion from decimals to whole units.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::words::ParseError;

/// The most digits that a unit may have after the point, so that every product here fits 128 bits.
const MAX_DECIMALS: usize = 18;

/// An amount: a capacity or a burst, in the limit's natural units.
///
/// Whole numbers convert into it, and so do strings: `"unlimited"`, or a decimal such as `"1.5"`, which a limit with
/// a [`unit`](crate::Limit::unit) turns into whole units exactly. Strings are checked together with the rest of the
/// declaration.
///
/// ```
/// use shmlimit::declare::Amount;
///
/// assert_eq!("1.50".parse(), Ok(Amount::from("1.5"))); // equal if they are the same number
/// assert!(matches!(Amount::from(10_000), Amount::Whole(10_000)));
/// assert!(matches!(Amount::from("unlimited"), Amount::Unlimited));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Amount {
    /// A whole number.
    Whole(u64),
    /// A decimal number: digits with at most one point.
    Decimal(String),
    /// No bound: the limit always admits, and still counts.
    Unlimited,
}

impl Amount {
    /// A placeholder for an amount that was not given, used while reading.
    pub(in crate::declaration) fn absent() -> Self {
        Self::Decimal(String::new())
    }

    pub(in crate::declaration) fn is_absent(&self) -> bool {
        matches!(self, Self::Decimal(text) if text.is_empty())
    }

    pub(in crate::declaration) fn is_unlimited(&self) -> bool {
        matches!(self, Self::Unlimited)
    }

    /// The same amount in canonical form: `"1.50"` becomes `"1.5"`, and `"2.0"` becomes 2.
    pub(in crate::declaration) fn canonical(&self) -> Self {
        let Self::Decimal(text) = self else {
            return self.clone();
        };
        match Decimal::parse(text) {
            Ok(Decimal { digits, decimals: 0 }) if digits <= u128::from(u64::MAX) => {
                Self::Whole(digits as u64)
            }
            Ok(decimal) => Self::Decimal(decimal.to_string()),
            Err(_) => self.clone(),
        }
    }
}

impl From<u64> for Amount {
    fn from(whole: u64) -> Self {
        Self::Whole(whole)
    }
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        if text == "unlimited" {
            Self::Unlimited
        } else {
            Self::Decimal(text.to_owned())
        }
    }
}

/// Reads and checks what TOML may have in quotes: a whole number, a decimal with one point, or `unlimited`.
impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let amount = Self::from(text);
        match &amount {
            Self::Decimal(text) if matches!(Decimal::parse(text), Err(Unreadable::NotADecimal)) => {
                Err(ParseError::new(
                    text,
                    "an amount",
                    "write digits with at most one point, such as \"1.5\", or \"unlimited\"",
                ))
            }
            _ => Ok(amount.canonical()),
        }
    }
}

/// Amounts are equal if they are the same number, however it is written.
impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        match (self.canonical(), other.canonical()) {
            (Self::Whole(one), Self::Whole(other)) => one == other,
            (Self::Decimal(one), Self::Decimal(other)) => one == other,
            (Self::Unlimited, Self::Unlimited) => true,
            _ => false,
        }
    }
}

impl Eq for Amount {}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            Self::Decimal(text) => text.fmt(f),
            Self::Unlimited => "unlimited".fmt(f),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // TOML's integers end at 2^63 - 1; greater numbers are written as strings.
            Self::Whole(whole) if i64::try_from(*whole).is_ok() => serializer.serialize_u64(*whole),
            other => serializer.collect_str(other),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a whole number of at least 0, a decimal in quotes such as \"1.5\", or \"unlimited\"",
                )
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Amount, E> {
                Ok(Amount::Whole(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Amount, E> {
                u64::try_from(value)
                    .map(Amount::Whole)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Amount, E> {
                Err(E::custom(format_args!(
                    "{value} without quotes is a binary fraction: write \"{value}\", so that it is exact"
                )))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount::from(text))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// Why a decimal is not a number of units. The message continues after the text that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidAmount {
    #[error("is not a decimal number: write digits with at most one point, such as \"1.5\"")]
    NotADecimal,
    #[error("is not a whole number of units of {0}: round it, or declare a smaller `unit`")]
    NotWhole(Scale),
    #[error("is more than {max} units of {0}: choose less, or declare a larger `unit`", max = u64::MAX)]
    TooLarge(Scale),
    #[error(
        "is not a unit: write a positive decimal such as \"0.001\", of at most 18 digits after the point"
    )]
    NotAUnit,
}

/// The size of a limit's unit: `digits / 10^decimals`, positive.
///
/// The engine counts whole units; a scale converts a caller's decimals to units without using floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    digits: u64,
    decimals: usize,
}

impl Scale {
    /// The scale of a limit whose units are natural units.
    pub(crate) const ONE: Self = Self {
        digits: 1,
        decimals: 0,
    };

    pub(crate) fn parse(text: &str) -> Result<Self, InvalidAmount> {
        let Decimal { digits, decimals } = Decimal::parse(text).map_err(|_| InvalidAmount::NotAUnit)?;
        match u64::try_from(digits) {
            Ok(digits) if digits > 0 && decimals <= MAX_DECIMALS => Ok(Self { digits, decimals }),
            _ => Err(InvalidAmount::NotAUnit),
        }
    }

    /// The whole number of units that a decimal in natural units stands for, exactly.
    pub(crate) fn units(&self, natural: &str) -> Result<u64, InvalidAmount> {
        match Decimal::parse(natural) {
            Ok(decimal) => self.divide(decimal),
            Err(Unreadable::NotADecimal) => Err(InvalidAmount::NotADecimal),
            Err(Unreadable::TooLong { decimals }) if decimals > self.decimals => {
                Err(InvalidAmount::NotWhole(*self))
            }
            Err(Unreadable::TooLong { .. }) => Err(InvalidAmount::TooLarge(*self)),
        }
    }

    /// The fewest whole units that cover a decimal in natural units.
    pub(crate) fn units_to_cover(&self, natural: &str) -> Result<u64, InvalidAmount> {
        let decimal = match Decimal::parse(natural) {
            Ok(decimal) => decimal,
            Err(Unreadable::NotADecimal) => return Err(InvalidAmount::NotADecimal),
            // Digits beyond the unit's can only round it up, however many there are.
            Err(Unreadable::TooLong { .. }) => {
                Decimal::parse_rounding_up(natural, self.decimals).ok_or(InvalidAmount::TooLarge(*self))?
            }
        };
        let power = |exponent: usize| power_of_ten(exponent).ok_or(InvalidAmount::TooLarge(*self));
        let (scaled, unit) = match self.decimals.checked_sub(decimal.decimals) {
            Some(shift) => (decimal.digits.checked_mul(power(shift)?), u128::from(self.digits)),
            None => match power(decimal.decimals - self.decimals)?.checked_mul(u128::from(self.digits)) {
                Some(unit) => (Some(decimal.digits), unit),
                // A number of 128 bits is always less than such a unit.
                None => return Ok(u64::from(decimal.digits > 0)),
            },
        };
        let scaled = scaled.ok_or(InvalidAmount::TooLarge(*self))?;
        u64::try_from(scaled.div_ceil(unit)).map_err(|_| InvalidAmount::TooLarge(*self))
    }

    /// A decimal in natural units as a reduced fraction of units: numerator and denominator. `None` if it is not a
    /// decimal or either number is too large.
    pub(in crate::declaration) fn fraction(&self, natural: &str) -> Option<(u64, u32)> {
        let decimal = Decimal::parse(natural).ok()?;
        let power = |exponent: usize| 10_u128.checked_pow(u32::try_from(exponent).ok()?);
        let units = decimal.digits.checked_mul(power(self.decimals)?)?;
        let parts = u128::from(self.digits).checked_mul(power(decimal.decimals)?)?;
        let (mut divisor, mut rest) = (units, parts);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        // Not zero, because a scale is positive.
        let reduced = |number: u128| number.checked_div(divisor);
        Some((reduced(units)?.try_into().ok()?, reduced(parts)?.try_into().ok()?))
    }

    /// [`units`](Self::units) for a whole number.
    pub(crate) fn units_of_whole(&self, natural: u64) -> Result<u64, InvalidAmount> {
        self.divide(Decimal {
            digits: u128::from(natural),
            decimals: 0,
        })
    }

    /// A number of units in natural units.
    pub(crate) fn format_units(&self, units: u64) -> String {
        let mut product = Decimal {
            digits: u128::from(units) * u128::from(self.digits),
            decimals: self.decimals,
        };
        while product.decimals > 0 && product.digits.is_multiple_of(10) {
            product.digits /= 10;
            product.decimals -= 1;
        }
        product.to_string()
    }

    fn divide(&self, natural: Decimal) -> Result<u64, InvalidAmount> {
        // The last digit after a decimal's point is not zero, so a decimal with more digits than the unit cannot
        // divide evenly.
        let Some(shift) = self.decimals.checked_sub(natural.decimals) else {
            return Err(InvalidAmount::NotWhole(*self));
        };
        // At least 2^128, divided by at most 2^64 - 1, exceeds 64 bits: overflow here means "too large".
        let scaled = power_of_ten(shift)
            .and_then(|power| natural.digits.checked_mul(power))
            .ok_or(InvalidAmount::TooLarge(*self))?;
        let unit = u128::from(self.digits);
        if !scaled.is_multiple_of(unit) {
            return Err(InvalidAmount::NotWhole(*self));
        }
        u64::try_from(scaled / unit).map_err(|_| InvalidAmount::TooLarge(*self))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Decimal {
            digits: u128::from(self.digits),
            decimals: self.decimals,
        }
        .fmt(f)
    }
}

/// `digits / 10^decimals`, where the last decimal is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    digits: u128,
    decimals: usize,
}

/// Why a text is not a [`Decimal`].
enum Unreadable {
    NotADecimal,
    /// More digits than 128 bits hold, with this many after the point.
    TooLong {
        decimals: usize,
    },
}

impl Decimal {
    fn parse(text: &str) -> Result<Self, Unreadable> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let readable = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !readable(whole) || !readable(fraction) {
            return Err(Unreadable::NotADecimal);
        }
        let fraction = fraction.trim_end_matches('0');
        let decimals = fraction.len();
        let digits = whole
            .bytes()
            .chain(fraction.bytes())
            .try_fold(0_u128, |sum, byte| {
                sum.checked_mul(10)?.checked_add(u128::from(byte - b'0'))
            });
        Ok(Self {
            digits: digits.ok_or(Unreadable::TooLong { decimals })?,
            decimals,
        })
    }

    /// The least decimal with this many digits after the point that is not below `text`, which is a readable decimal.
    /// `None` if 128 bits cannot hold its digits.
    fn parse_rounding_up(text: &str, decimals: usize) -> Option<Self> {
        let (whole, fraction) = text.split_once('.')?;
        let (kept, rest) = fraction.split_at_checked(decimals)?;
        let digits: u128 = format!("{whole}{kept}").parse().ok()?;
        let is_more = rest.bytes().any(|byte| byte != b'0');
        Some(Self {
            digits: digits.checked_add(u128::from(is_more))?,
            decimals,
        })
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0>width$}", self.digits, width = self.decimals + 1);
        let (whole, fraction) = digits.split_at(digits.len() - self.decimals);
        f.write_str(whole)?;
        if !fraction.is_empty() {
            write!(f, ".{fraction}")?;
        }
        Ok(())
    }
}

fn power_of_ten(exponent: usize) -> Option<u128> {
    10_u128.checked_pow(u32::try_from(exponent).ok()?)
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::super::amount::*;

    fn scale(text: &str) -> Scale {
        Scale::parse(text).expect("a unit")
    }

    #[test]
    fn what_was_used_is_rounded_up_to_the_unit() {
        let digits = |count: usize| "3".repeat(count);
        for (unit, natural, covering) in [
            ("0.01", "0.02", 2),
            ("0.01", "0.0247", 3),
            ("0.01", "0", 0),
            ("0.01", "0.000000000000000000000000000001", 1),
            ("1", "1.5", 2),
            ("0.25", "0.51", 3),
            ("1000", "3000.0001", 4),
            ("0.000000000000000001", "0.0000000000000000015", 2),
            (
                "18446744073709551615",
                "0.0000000000000000000000000000000000001",
                1,
            ),
            ("0.1", &format!("0.{}", digits(400)), 4),
            ("0.1", &format!("1.{}", "0".repeat(400)), 10),
        ] {
            assert_eq!(
                scale(unit).units_to_cover(natural),
                Ok(covering),
                "{natural} by {unit}"
            );
        }
        for unreadable in ["", "-1", "1e3", "NaN", "inf", "0x1", "."] {
            assert_eq!(
                scale("1").units_to_cover(unreadable),
                Err(InvalidAmount::NotADecimal)
            );
        }
        for large in [
            "18446744073709551616",
            &digits(300),
            &format!("{}.5", digits(300)),
        ] {
            assert_eq!(
                scale("1").units_to_cover(large),
                Err(InvalidAmount::TooLarge(Scale::ONE))
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_whole_is_covered_exactly_and_the_rest_by_the_next_unit(
            units in 0..u64::MAX, digits in 1..u64::MAX, decimals in 0_usize..=MAX_DECIMALS
        ) {
            let scale = Scale { digits, decimals };
            let natural = scale.format_units(units);
            prop_assert_eq!(scale.units_to_cover(&natural), Ok(units));
            let (whole, fraction) = natural.split_once('.').unwrap_or((&natural, ""));
            let above = format!("{whole}.{fraction:0<40}1");
            prop_assert_eq!(scale.units_to_cover(&above), Ok(units + 1));
        }
    }

    #[test]
    fn a_decimal_becomes_whole_units() {
        assert_eq!(scale("0.001").units("1.5"), Ok(1500));
        assert_eq!(scale("0.25").units("1.50"), Ok(6));
        assert_eq!(scale("1000").units("3000"), Ok(3));
        assert_eq!(scale("1").units("0"), Ok(0));
        assert_eq!(scale("1").units_of_whole(u64::MAX), Ok(u64::MAX));
    }

    #[test]
    fn whole_units_become_a_decimal() {
        assert_eq!(scale("0.001").format_units(1500), "1.5");
        assert_eq!(scale("0.25").format_units(6), "1.5");
        assert_eq!(scale("1000").format_units(3), "3000");
        assert_eq!(scale("0.1").format_units(0), "0");
    }

    proptest! {
        #[test]
        fn what_units_are_in_natural_ones_is_worth_as_many_units(
            units: u64,
            digits in 1_u64..,
            decimals in 0..=MAX_DECIMALS,
        ) {
            let scale = scale(&Decimal { digits: u128::from(digits), decimals }.to_string());
            prop_assert_eq!(scale.units(&scale.format_units(units)), Ok(units));
        }
    }

    #[test]
    fn a_part_of_a_unit_is_refused() {
        assert_eq!(
            scale("0.001").units("0.0005"),
            Err(InvalidAmount::NotWhole(scale("0.001")))
        );
        assert_eq!(
            scale("3").units_of_whole(10),
            Err(InvalidAmount::NotWhole(scale("3")))
        );
        assert_eq!(
            Scale::ONE.units(&format!("1.{:01$}1", 0, 60)),
            Err(InvalidAmount::NotWhole(Scale::ONE))
        );
    }

    #[test]
    fn more_units_than_64_bits_hold_are_refused() {
        assert_eq!(
            Scale::ONE.units("18446744073709551616"),
            Err(InvalidAmount::TooLarge(Scale::ONE))
        );
        let small = scale("0.000000000000000001");
        assert_eq!(small.units("18.446744073709551615"), Ok(u64::MAX));
        assert_eq!(
            small.units("18.446744073709551616"),
            Err(InvalidAmount::TooLarge(small))
        );
        assert_eq!(small.units(&"9".repeat(60)), Err(InvalidAmount::TooLarge(small)));
    }

    #[test]
    fn what_is_not_a_decimal_is_refused() {
        for text in [
            "", ".", "1.", ".5", "1.2.3", "-1", "+1", "1e3", "1_000", " 1", "NaN", "\u{663}",
        ] {
            assert_eq!(
                Scale::ONE.units(text),
                Err(InvalidAmount::NotADecimal),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_what_one_is() {
        for text in ["", "1.", "-1", "1e3", "Unlimited"] {
            let error = text.parse::<Amount>().expect_err("no amount");
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("{text:?} is not an amount")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_unit_is_positive_and_of_at_most_eighteen_decimals() {
        for text in [
            "0",
            "0.0",
            "-1",
            "0.0000000000000000001",
            "18446744073709551616",
            "",
        ] {
            assert_eq!(Scale::parse(text), Err(InvalidAmount::NotAUnit), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn units_are_what_long_division_says(
            natural in "[0-9]{1,24}(\\.[0-9]{1,24})?",
            unit in "[0-9]{1,8}(\\.[0-9]{1,9})?",
        ) {
            let Ok(scale) = Scale::parse(&unit) else { return Ok(()) };
            // The oracle: both numbers times 10^24, as big integers.
            let big = |text: &str| {
                let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
                format!("{whole}{fraction:0<24}").parse::<BigUint>().expect("digits")
            };
            let (natural_big, unit_big) = (big(&natural), big(&unit));
            let whole = &natural_big % &unit_big == BigUint::ZERO;
            let exact = u64::try_from(&natural_big / &unit_big).ok().filter(|_| whole);
            prop_assert_eq!(scale.units(&natural).ok(), exact);
        }

        #[test]
        fn whole_units_survive_the_way_through_decimals(units: u64, decimals in 0_usize..=18) {
            let unit = Decimal { digits: 1, decimals }.to_string();
            let natural = Decimal { digits: u128::from(units), decimals }.to_string();
            prop_assert_eq!(scale(&unit).units(&natural), Ok(units));
        }

        #[test]
        fn every_amount_is_read_back(text in "[0-9]{1,30}(\\.[0-9]{1,30})?|unlimited", whole: u64) {
            for amount in [Amount::from(text.as_str()), Amount::from(whole)] {
                prop_assert_eq!(amount.to_string().parse::<Amount>(), Ok(amount));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Amount>();
            let _ = Scale::parse(&text);
            let _ = Scale::ONE.units(&text);
        }
    }
}
