//! What a keyed set requires of its limits.

use super::SetDeclaration;
use crate::declaration::limit::Limit;
use crate::declaration::limit::checks::written;
use crate::declaration::limit::prefix::Prefix;
use crate::declaration::location::{Location, check_range};
use crate::engine::terms::plan::LimitPlan;
use crate::error::DeclarationError;

const MAX_PREFIXES: u64 = 4;

impl SetDeclaration {
    /// Whether keys can have their own capacities.
    pub(super) fn has_overrides(&self) -> bool {
        self.keyed.as_ref().and_then(|keyed| keyed.overrides) == Some(true)
    }

    /// Requires that some limit can have a capacity per key, if overrides are declared.
    pub(in crate::declaration) fn check_overrides(
        &self,
        place: &Location<'_>,
        limits: &[LimitPlan],
    ) -> Result<(), DeclarationError> {
        if !self.has_overrides() {
            return Ok(());
        }
        let advice = if self.limits.iter().any(|limit| limit.prefix.is_some()) {
            "networks have no capacities of their own; remove it, or the prefixes of the limits"
        } else if self.limits.iter().any(|limit| limit.credit.is_some()) {
            "what a process has drawn in advance does not change with the capacity of its key; remove it, or the credit \
             of the limit"
        } else if self.limits.iter().any(|limit| limit.fleet.is_some()) {
            "hosts share limits that are the same for every key; declare another set for keys with other capacities, or \
             remove `fleet` of the limit"
        } else if limits.iter().all(|limit| limit.terms.is_none()) {
            "every capacity of the set is unlimited, adaptive or shared by all keys, so no key can have another; remove it"
        } else {
            return Ok(());
        };
        Err(DeclarationError::Misplaced {
            place: place.field("keyed / overrides"),
            given: "true".to_owned(),
            advice: advice.to_owned(),
        })
    }

    /// Whether all keys have some limit together.
    pub(super) fn has_overall(&self) -> bool {
        self.limits.iter().any(Limit::is_overall)
    }

    /// Requires that a set with limits of all keys has keys, and nothing that depends on single rows.
    pub(in crate::declaration) fn check_scopes(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let Some(overall) = self.limits.iter().find(|limit| limit.is_overall()) else {
            return Ok(());
        };
        let advice = if self.keyed.is_none() {
            "without keys, all requests share a limit anyway; remove it, or declare the set with keyed = { max_keys = \
             100_000 }"
        } else if self.limits.iter().any(|limit| limit.prefix.is_some()) {
            "limits that count networks are decided by networks alone; remove it, or the prefixes of the limits"
        } else if self.limits.iter().any(|limit| limit.credit.is_some()) {
            "batches are drawn for single keys; remove it, or the credit of the limit"
        } else if self.limits.iter().any(|limit| limit.fleet.is_some()) {
            "hosts share the limits of single keys only; remove it, or `fleet` of the limit"
        } else {
            return Ok(());
        };
        let place = Location {
            limit: Some(&overall.name),
            ..*place
        };
        Err(overall.misplaced(&place, "scope", advice))
    }

    /// Requires the prefixes of the limits to fit the set and one another. Each has been checked by itself.
    pub(in crate::declaration) fn check_prefixes(
        &self,
        place: &Location<'_>,
    ) -> Result<(), DeclarationError> {
        let mut distinct: Vec<(Prefix, &Limit)> = Vec::new();
        for limit in &self.limits {
            let place = Location {
                limit: Some(&limit.name),
                ..*place
            };
            let Some(prefix) = limit.prefix else { continue };
            if self.keyed.is_none() {
                return Err(limit.misplaced(
                    &place,
                    "prefix",
                    "only the keys of a keyed set are addresses; remove it, or declare the set with \
                     keyed = { max_keys = 100_000 }",
                ));
            }
            if let Some((other, named)) = distinct.iter().find(|(other, _)| !other.nests_with(&prefix)) {
                return Err(DeclarationError::Value {
                    place: place.field("prefix"),
                    given: written(limit, "prefix"),
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
            let place = Location {
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
