//! Tiers: other quotas for some keys of a keyed set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::declaration::limit::Limit;
use crate::declaration::limit::amount::Amount;
use crate::declaration::limit::window::Window;

/// The tier of keys that were never put into another.
pub(crate) const DEFAULT_TIER: &str = "default";

/// The weight of tiers that declare none, and of `default`.
pub(super) const DEFAULT_WEIGHT: u32 = 1;

/// Other quotas for keys of a [keyed set](crate::SetDeclaration::keyed): what a plan such as "gold" changes in the
/// limits of the set. What it does not name stays as in the tier `default`, which is the limits themselves.
///
/// A key is in the tier that was last named by a [request](crate::Request::with_tier) or last
/// [assigned](crate::Key::assign) to the key, and before that in `default`. When its tier changes, its state migrates as
/// with [`Segment::apply`](crate::Segment::apply): what was used stays used, and nothing is granted for the past.
///
/// A set has tiers, or keys with [capacities of their own](crate::Keyed::overrides), and not both.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Keyed, Limit, SetDeclaration, Tier};
///
/// let tenants = SetDeclaration::new("tenants")
///     .keyed(Keyed::new(100_000))
///     .add_limit(Limit::calls("requests", 100, Duration::from_secs(60)))
///     .add_limit(Limit::concurrency("in_flight", 4))
///     .add_tier(Tier::new("gold").capacity("requests", 1_000).burst("requests", 200))
///     .add_tier(Tier::new("free").capacity("requests", 10).capacity("in_flight", 1));
/// Declaration::new().add_set(tenants).validate()?;
/// # Ok::<(), shmlimit::DeclarationError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Tier {
    pub(in crate::declaration) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(in crate::declaration) limits: BTreeMap<String, TierLimit>,
}

/// What a tier changes in one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::declaration) struct TierLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) interval: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) window: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<Amount>,
}

impl Tier {
    /// A tier that changes nothing yet. Its name must be unique in the set, of 1 to 64 bytes without control
    /// characters, and not `default`. A set has at most 255 tiers.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: None,
            limits: BTreeMap::new(),
        }
    }

    /// The capacity of a limit for keys of the tier: at least 1, and not unlimited. A burst that the limit does not
    /// declare follows it.
    pub fn capacity(mut self, limit: impl Into<String>, capacity: impl Into<Amount>) -> Self {
        self.limits.entry(limit.into()).or_default().capacity = Some(capacity.into());
        self
    }

    /// The burst of a limit for keys of the tier, if its algorithm has one: at least 1.
    pub fn burst(mut self, limit: impl Into<String>, burst: impl Into<Amount>) -> Self {
        self.limits.entry(limit.into()).or_default().burst = Some(burst.into());
        self
    }

    /// The window of a limit for keys of the tier. Calendar windows cannot change, nor can those of a
    /// [`SlidingWindowCounter`](crate::Algorithm::SlidingWindowCounter). At most two [sliding
    /// windows](crate::Algorithm::SlidingWindow) of a set can have other lengths, and only one if the set has more
    /// than ten limits.
    pub fn window(mut self, limit: impl Into<String>, window: impl Into<Window>) -> Self {
        self.limits.entry(limit.into()).or_default().window = Some(window.into());
        self
    }

    /// How much a key of the tier gets of the limits of all keys while several keys wait, in proportion to the weights of
    /// the others: 1 to 1,000. It is 1 by default and in the tier `default`. Only for sets that have
    /// [limits of all keys](crate::declare::Scope::AllKeys).
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::declare::Scope;
    /// use shmlimit::{Declaration, Keyed, Limit, SetDeclaration, Tier};
    ///
    /// let model = SetDeclaration::new("model")
    ///     .keyed(Keyed::new(10_000))
    ///     .add_limit(Limit::rate("tokens", 2_000_000, Duration::from_secs(60)).scope(Scope::AllKeys))
    ///     .add_tier(Tier::new("gold").weight(10));
    /// Declaration::new().add_set(model).validate()?;
    /// # Ok::<(), shmlimit::DeclarationError>(())
    /// ```
    ///
    /// It can change in a live segment.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// The tier's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl TierLimit {
    /// Everything in a limit that a tier can change.
    pub(super) fn of(limit: Limit) -> Self {
        Self {
            capacity: Some(limit.capacity),
            rate: limit.rate,
            interval: limit.interval,
            window: limit.window,
            burst: limit.burst,
        }
    }

    /// A fully written-out change, as a capacity per window.
    pub(super) fn per_window_of(&self, limit: &Limit) -> Self {
        let change = self.clone();
        let worded = Limit {
            capacity: change.capacity.unwrap_or_else(|| limit.capacity.clone()),
            rate: change.rate,
            interval: change.interval,
            window: change.window,
            burst: change.burst,
            ..limit.clone()
        };
        Self::of(worded.per_window())
    }
}
