//! How keys stand among those that wait for limits of all keys.

use std::time::Duration;

use serde::Serialize;

use super::seconds::as_seconds;
use crate::order;

/// How a key stands among those that wait for limits of all keys. As long as the same keys wait, it gets `weight` of
/// every `weight_of_all` parts of what they get together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyInOrder {
    /// The [weight](crate::Tier::weight) of its tier.
    pub weight: u64,
    /// The sum of the weights of all keys that wait for limits of all keys.
    pub weight_of_all: u64,
    /// How much further it has been served than the others, divided by its weight, as the time in which the limits
    /// replenish that much. The key with the smallest lead is served next; of keys without one, the one that came
    /// first.
    #[serde(serialize_with = "as_seconds")]
    pub lead: Duration,
}

impl KeyInOrder {
    pub(super) fn of(standing: order::Standing) -> Self {
        Self {
            weight: standing.weight,
            weight_of_all: standing.of_all,
            lead: Duration::from_nanos(standing.lead / order::PER_NANO),
        }
    }
}
