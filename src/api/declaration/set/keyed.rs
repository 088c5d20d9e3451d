//! Sets in which every key has a state of its own, and limits that count the networks of such keys.

use serde::{Deserialize, Serialize};

use super::SetDeclaration;
use crate::api::declaration::limit::Limit;
use crate::api::declaration::limit::checks::written;
use crate::api::declaration::place::{Place, check_range};
use crate::engine::definition::plan::{KeyedPlan, LimitPlan, PrefixLengths, WhenFull};
use crate::error::DeclarationError;

const MAX_KEYS: u64 = 1_000_000_000;
const MAX_PREFIXES: u64 = 4;

/// The table of a [keyed set](SetDeclaration::keyed): how many keys have a state of their own at the same time.
///
/// Its memory is reserved when the segment is created and never grows. A key whose limits are all replenished and of
/// which nothing is held makes room for another by itself; [`WhenFull`] is for when there is no such key.
///
/// `max_keys` is the least number of keys that find room at once. Rows come in buckets of 32, and every key has a choice
/// of two buckets, so there are more rows: 32 for 1 key, 128 for 100 keys, and 118,784 for 100,000.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Keyed, Limit, SetDeclaration, WhenFull};
///
/// let tenants = SetDeclaration::new("tenants")
///     .keyed(Keyed::new(100_000).when_full(WhenFull::Refuse).store_keys(false))
///     .limit(Limit::calls("requests", 100, Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Keyed {
    pub(in crate::api::declaration) max_keys: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api::declaration) when_full: Option<WhenFull>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api::declaration) store_keys: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api::declaration) overrides: Option<bool>,
}

impl Keyed {
    /// A table of at least `max_keys` keys, from 1 to 1,000,000,000.
    pub fn new(max_keys: u64) -> Self {
        Self {
            max_keys,
            when_full: None,
            store_keys: None,
            overrides: None,
        }
    }

    /// What becomes of a new key for which there is no room; [`WhenFull::Refuse`] unless declared.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// Whether the first bytes of each key are kept in the segment, for people to read; they are unless declared
    /// otherwise. Keys are distinguished by a fingerprint either way.
    pub fn store_keys(mut self, store_keys: bool) -> Self {
        self.store_keys = Some(store_keys);
        self
    }

    /// Whether single keys can have [capacities of their own](crate::Key::override_capacity); they cannot unless declared.
    /// Where they can, the row of each key has a word for each limit whose capacity is a number and does not adapt, and one
    /// more, of 8 bytes each, before its size is rounded up to a multiple of 64. Where they cannot, that costs nothing.
    ///
    /// Not for sets whose limits count networks, or have credit.
    pub fn overrides(mut self, overrides: bool) -> Self {
        self.overrides = Some(overrides);
        self
    }

    pub(in crate::api::declaration) fn check(&self, place: &Place<'_>) -> Result<(), DeclarationError> {
        check_range(|| place.field("keyed / max_keys"), self.max_keys, 1, MAX_KEYS)
    }

    pub(in crate::api::declaration) fn plan(&self) -> KeyedPlan {
        KeyedPlan {
            max_keys: self.max_keys,
            when_full: self.when_full.unwrap_or_default(),
            store_keys: self.store_keys.unwrap_or(true),
            overrides: self.overrides.unwrap_or_default(),
        }
    }

    /// The same table with every default written out.
    pub(in crate::api::declaration) fn canonical(&self) -> Self {
        let plan = self.plan();
        Self {
            // Nothing valid comes near the end of TOML's integers, and what is not valid must be written too.
            max_keys: plan.max_keys.min(i64::MAX as u64),
            when_full: Some(plan.when_full),
            store_keys: Some(plan.store_keys),
            // What most sets leave out is left out of their definitions.
            overrides: plan.overrides.then_some(true),
        }
    }
}

/// Prefix lengths as they are declared: of any size until they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api::declaration) struct Prefix {
    ipv4: u32,
    ipv6: u32,
}

impl Prefix {
    pub(in crate::api::declaration) fn new(ipv4: u8, ipv6: u8) -> Self {
        Self {
            ipv4: ipv4.into(),
            ipv6: ipv6.into(),
        }
    }

    pub(in crate::api::declaration) fn check(&self, place: &Place<'_>) -> Result<(), DeclarationError> {
        check_range(|| place.field("prefix / ipv4"), self.ipv4.into(), 0, 32)?;
        check_range(|| place.field("prefix / ipv6"), self.ipv6.into(), 0, 128)
    }

    /// The same, once checked.
    pub(in crate::api::declaration) fn lengths(self) -> PrefixLengths {
        PrefixLengths {
            ipv4: self.ipv4 as u8,
            ipv6: self.ipv6 as u8,
        }
    }

    /// Whether the networks of one of them lie within those of the other, for both families of addresses.
    fn nests_with(&self, other: &Self) -> bool {
        let within = |inner: &Self, outer: &Self| inner.ipv4 >= outer.ipv4 && inner.ipv6 >= outer.ipv6;
        within(self, other) || within(other, self)
    }
}

impl SetDeclaration {
    /// Where keys can have capacities of their own, there are limits that this makes sense for.
    pub(in crate::api::declaration) fn check_overrides(
        &self,
        place: &Place<'_>,
        limits: &[LimitPlan],
    ) -> Result<(), DeclarationError> {
        if self.keyed.as_ref().and_then(|keyed| keyed.overrides) != Some(true) {
            return Ok(());
        }
        let advice = if self.limits.iter().any(|limit| limit.prefix.is_some()) {
            "networks have no capacities of their own; remove it, or the prefixes of the limits"
        } else if self.limits.iter().any(|limit| limit.credit.is_some()) {
            "what a process has drawn in advance does not change with the capacity of its key; remove it, or the credit \
             of the limit"
        } else if limits.iter().all(|limit| limit.terms.is_none()) {
            "every capacity of the set is unlimited or finds itself, so that no key can have another; remove it"
        } else {
            return Ok(());
        };
        Err(DeclarationError::Misplaced {
            place: place.field("keyed / overrides"),
            given: "true".to_owned(),
            advice: advice.to_owned(),
        })
    }

    /// The prefixes of the limits fit the set and one another. Each by itself has been checked.
    pub(in crate::api::declaration) fn check_prefixes(
        &self,
        place: &Place<'_>,
    ) -> Result<(), DeclarationError> {
        let mut distinct: Vec<(Prefix, &Limit)> = Vec::new();
        for limit in &self.limits {
            let place = Place {
                limit: Some(&limit.name),
                ..*place
            };
            let Some(prefix) = limit.prefix else { continue };
            if self.keyed.is_none() {
                return Err(DeclarationError::Misplaced {
                    place: place.field("prefix"),
                    given: written(&limit.prefix).unwrap_or_default(),
                    advice: "only the keys of a keyed set are addresses; remove it, or declare the set with \
                             keyed = { max_keys = 100_000 }"
                        .to_owned(),
                });
            }
            if let Some((other, named)) = distinct.iter().find(|(other, _)| !other.nests_with(&prefix)) {
                return Err(DeclarationError::Value {
                    place: place.field("prefix"),
                    given: written(&limit.prefix).unwrap_or_default(),
                    problem: format!(
                        "is longer than that of limit {:?}, /{} and /{}, for one family of addresses and shorter for \
                         the other: make it longer for both, or shorter for both",
                        named.name, other.ipv4, other.ipv6
                    ),
                });
            }
            if distinct.iter().all(|(other, _)| *other != prefix) {
                distinct.push((prefix, limit));
            }
        }
        let without = self.limits.iter().find(|limit| limit.prefix.is_none());
        if let (Some((prefix, named)), Some(without)) = (distinct.first(), without) {
            let place = Place {
                limit: Some(&without.name),
                ..*place
            };
            return Err(DeclarationError::Missing {
                place: place.field("prefix"),
                advice: format!(
                    "limit {:?} has one, so declare one here too (prefix = {{ ipv4 = 32, ipv6 = 128 }} for single \
                     addresses), or remove that of /{} and /{}",
                    named.name, prefix.ipv4, prefix.ipv6
                ),
            });
        }
        let count = distinct.len() as u64;
        check_range(|| place.field("different prefixes"), count, 0, MAX_PREFIXES)
    }
}
