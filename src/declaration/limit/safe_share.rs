//! How much a host continues with while the store is out.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::amount::Amount;

/// What `safe` says: an amount, or a fraction of the capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::declaration) enum SafeShare {
    Amount(Amount),
    /// In millionths.
    Fraction(u64),
}

const MILLION: u64 = 1_000_000;

impl SafeShare {
    pub(super) fn fraction(fraction: f64) -> Self {
        // Saturates. Zero is rejected when the declaration is checked.
        Self::Fraction((fraction * MILLION as f64).round() as u64)
    }

    /// The same in canonical form.
    pub(super) fn canonical(&self) -> Self {
        match self {
            Self::Amount(amount) => Self::Amount(amount.canonical()),
            fraction => fraction.clone(),
        }
    }

    /// Whether it is a fraction above 1, or a fraction of zero.
    pub(super) fn is_no_fraction(&self) -> bool {
        matches!(self, Self::Fraction(millionths) if !(1..=MILLION).contains(millionths))
    }

    /// That part of a capacity, at least 1, if it is a fraction.
    pub(in crate::declaration) fn part_of(&self, capacity: u64) -> Option<u64> {
        match self {
            Self::Amount(_) => None,
            Self::Fraction(millionths) => {
                let part = u128::from(capacity) * u128::from(*millionths) / u128::from(MILLION);
                Some(u64::try_from(part).unwrap_or(u64::MAX).max(1))
            }
        }
    }
}

impl fmt::Display for SafeShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => amount.fmt(f),
            Self::Fraction(millionths) => (*millionths as f64 / MILLION as f64).fmt(f),
        }
    }
}

impl Serialize for SafeShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Amount(amount) => amount.serialize(serializer),
            Self::Fraction(millionths) => serializer.serialize_f64(*millionths as f64 / MILLION as f64),
        }
    }
}

impl<'de> Deserialize<'de> for SafeShare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = SafeShare;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount such as 50, or a fraction of the capacity such as 0.25")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<SafeShare, E> {
                Ok(SafeShare::Amount(Amount::Whole(value)))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<SafeShare, E> {
                let whole = u64::try_from(value);
                let whole = whole.map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
                self.visit_u64(whole)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<SafeShare, E> {
                Ok(SafeShare::fraction(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<SafeShare, E> {
                let amount = value.parse().map_err(E::custom)?;
                Ok(SafeShare::Amount(amount))
            }
        }

        deserializer.deserialize_any(Written)
    }
}
