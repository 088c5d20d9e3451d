//! Sets in which every key has its own state.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::choices::WhenFull;
use crate::declaration::location::{Location, check_range};
use crate::engine::terms::plan::KeyedPlan;
use crate::error::DeclarationError;

const MAX_KEYS: u64 = 1_000_000_000;

/// The table of a [keyed set](crate::SetDeclaration::keyed): how many keys can have a state of their own at the same
/// time.
///
/// The bytes of keys that are kept for people to read are in the clear, and everyone who may read the file can see them:
/// declare [`store_keys(false)`](Self::store_keys) if keys are secrets, such as API keys and bearer tokens.
///
/// Its memory is reserved when the segment is created and never grows. A key whose limits are all replenished and
/// which holds nothing makes room for another on its own; [`WhenFull`] decides what happens if there is no such key.
///
/// There is room for at least `max_keys` keys at once. Rows come in buckets of 32, and every key can lie in two buckets,
/// so there are more rows: 32 for 1 key, 128 for 100 keys, and 118,784 for 100,000.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::declare::WhenFull;
/// use shmlimit::{Keyed, Limit, SetDeclaration};
///
/// let tenants = SetDeclaration::new("tenants")
///     .keyed(Keyed::new(100_000).when_full(WhenFull::Refuse).store_keys(false))
///     .add_limit(Limit::calls("requests", 100, Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Keyed {
    pub(in crate::declaration) max_keys: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) when_full: Option<WhenFull>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) store_keys: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) overrides: Option<bool>,
}

/// Reads the `keyed` of a set: a table, or only how many keys there is room for.
pub(super) fn table_or_max_keys<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Keyed>, D::Error> {
    struct Written;

    impl<'de> Visitor<'de> for Written {
        type Value = Keyed;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("how many keys there is room for, or a table such as { max_keys = 100_000 }")
        }

        fn visit_u64<E: Error>(self, max_keys: u64) -> Result<Keyed, E> {
            Ok(Keyed::new(max_keys))
        }

        fn visit_i64<E: Error>(self, max_keys: i64) -> Result<Keyed, E> {
            // A number below zero is as invalid as zero, which is refused with the range.
            Ok(Keyed::new(u64::try_from(max_keys).unwrap_or(0)))
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Keyed, M::Error> {
            Keyed::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_any(Written).map(Some)
}

impl Keyed {
    /// A table with room for at least `max_keys` keys, from 1 to 1,000,000,000.
    pub fn new(max_keys: u64) -> Self {
        Self {
            max_keys,
            when_full: None,
            store_keys: None,
            overrides: None,
        }
    }

    /// What happens to a new key for which there is no room; [`WhenFull::Refuse`] by default.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// Whether the first bytes of each key are stored in the segment for people to read; true by default. Set it to false
    /// if keys are secrets. Keys are identified by a fingerprint either way.
    pub fn store_keys(mut self, store_keys: bool) -> Self {
        self.store_keys = Some(store_keys);
        self
    }

    /// Whether single keys can have [capacities of their own](crate::Key::override_capacity); false by default. If
    /// so, the row of each key has one more word for each limit whose capacity is a number and does not adapt, plus
    /// one, of 8 bytes each, before its size is rounded up to a multiple of 64. If not, this costs nothing.
    ///
    /// Not for sets that have [tiers](crate::Tier), or whose limits count networks or have credit.
    pub fn overrides(mut self, overrides: bool) -> Self {
        self.overrides = Some(overrides);
        self
    }

    pub(in crate::declaration) fn check(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        check_range(|| place.field("keyed / max_keys"), self.max_keys, 1, MAX_KEYS)
    }

    pub(in crate::declaration) fn plan(&self) -> KeyedPlan {
        KeyedPlan {
            max_keys: self.max_keys,
            when_full: self.when_full.unwrap_or_default(),
            store_keys: self.store_keys.unwrap_or(true),
            overrides: self.overrides.unwrap_or_default(),
        }
    }

    /// The same table with every default written out.
    pub(in crate::declaration) fn canonical(&self) -> Self {
        let plan = self.plan();
        Self {
            // No valid value comes near the end of TOML's integers, but invalid ones must be written too.
            max_keys: plan.max_keys.min(i64::MAX as u64),
            when_full: Some(self.when_full.unwrap_or_default()),
            store_keys: Some(plan.store_keys),
            // The default stays out of the definitions.
            overrides: plan.overrides.then_some(true),
        }
    }
}
