//! The tiers of a set: what they may change, and the resulting limits.

use std::collections::HashSet;

use super::SetDeclaration;
use super::tier::{DEFAULT_TIER, DEFAULT_WEIGHT, Tier, TierLimit};
use crate::declaration::canonical::{DEFAULT_ENTRIES, MAX_DEFAULT_ENTRIES_OF_A_KEY};
use crate::declaration::limit::amount::Amount;
use crate::declaration::limit::checks::written;
use crate::declaration::limit::window::Window;
use crate::declaration::limit::{Algorithm, Limit};
use crate::declaration::location::{Location, check_name, check_range};
use crate::engine::terms::plan::{
    LimitPlan, MAX_MIGRATED_WORDS, MAX_WORDS_BY_CAPACITY, TierPlan, share_refund_words,
};
use crate::error::{DeclarationError, Difference};
use crate::limit::RuleOperations;
use crate::sorting::map_of;

const MAX_TIERS: u64 = 255;
const MAX_WEIGHT: u64 = 1_000;

/// The most words that a change of tier rewrites, for a sliding window whose length changes and for any other limit.
const WORDS_OF_LOG: usize = 62;
const WORDS_OF_OTHER: usize = MAX_WORDS_BY_CAPACITY;

impl SetDeclaration {
    /// The limits as they apply to keys of a tier, in the order of the declaration; for `default`, as they are
    /// declared. `None` if the set has no such tier.
    pub fn limits_of_tier(&self, tier: &str) -> Option<Vec<Limit>> {
        if tier == DEFAULT_TIER {
            return Some(self.limits.clone());
        }
        let tier = self.tiers.iter().find(|declared| declared.name == *tier)?;
        let limits = self.limits.iter().map(|limit| {
            let change = tier.limits.get(&limit.name);
            change.map_or_else(|| limit.clone(), |change| self.in_tier(limit, change))
        });
        Some(limits.collect())
    }

    /// The [weight](Tier::weight) of a tier. `None` if the set has no such tier.
    pub fn weight_of_tier(&self, tier: &str) -> Option<u32> {
        if tier == DEFAULT_TIER {
            return Some(DEFAULT_WEIGHT);
        }
        let tier = self.tiers.iter().find(|declared| declared.name == *tier)?;
        Some(tier.weight.unwrap_or(DEFAULT_WEIGHT))
    }

    /// The limits of each tier, which are `limits` with its changes, or what is wrong with the tiers.
    pub(in crate::declaration) fn compile_tiers(
        &self,
        place: &Location<'_>,
        limits: &[LimitPlan],
    ) -> Result<Vec<TierPlan>, DeclarationError> {
        self.check_tiers(place)?;
        let mut tiers = Vec::with_capacity(self.tiers.len());
        for tier in &self.tiers {
            let mut changed = limits.to_vec();
            for (limit, plan) in self.limits.iter().zip(&mut changed) {
                let Some(change) = tier.limits.get(&limit.name) else {
                    continue;
                };
                let place = Location {
                    tier: Some(&tier.name),
                    limit: Some(&limit.name),
                    ..*place
                };
                let LimitPlan { rule, .. } = self.in_tier(limit, change).compile(&place, true, false)?;
                if !rule.can_migrate(&plan.rule) || !plan.rule.can_migrate(&rule) {
                    return Err(DeclarationError::Unsuitable {
                        place: place.field("window"),
                        reason: "what was counted over the window of the limit cannot be carried over to this one: \
                                 remove it"
                            .to_owned(),
                    });
                }
                plan.rule = rule;
            }
            share_refund_words(&mut changed);
            tiers.push(TierPlan {
                name: tier.name.clone(),
                weight: u64::from(tier.weight.unwrap_or(DEFAULT_WEIGHT)),
                limits: changed,
            });
        }
        Ok(tiers)
    }

    fn check_tiers(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let Some(first) = self.tiers.first() else {
            return Ok(());
        };
        let misplaced = |advice: &str| {
            Err(DeclarationError::Misplaced {
                place: place.field("tier"),
                given: format!("{:?}", first.name),
                advice: advice.to_owned(),
            })
        };
        if self.keyed.is_none() {
            return misplaced(
                "only keys belong to tiers; remove it, or declare the set with keyed = { max_keys = 100_000 }",
            );
        }
        if self.has_overrides() {
            return misplaced(
                "a set has tiers, or keys with capacities of their own, and not both; remove it, or `overrides` of `keyed`",
            );
        }
        if self.limits.iter().any(|limit| limit.prefix.is_some()) {
            return misplaced("networks do not belong to tiers; remove it, or the prefixes of the limits");
        }
        if self.limits.iter().any(|limit| limit.fleet.is_some()) {
            return misplaced(
                "hosts share limits that are the same for every key; declare a set for each tier with a key of its own in \
                 `fleet`, or remove `fleet` of the limit",
            );
        }
        if self.limits.iter().any(|limit| limit.credit.is_some()) {
            return misplaced(
                "what a process has drawn in advance does not change with the tier of its key; remove it, or the \
                 credit of the limit",
            );
        }
        check_range(|| place.field("tiers"), self.tiers.len() as u64, 1, MAX_TIERS)?;
        let mut names = HashSet::from([DEFAULT_TIER]);
        for (index, tier) in self.tiers.iter().enumerate() {
            check_name(|| place.field(&format!("tier {}", index + 1)), &tier.name)?;
            let place = Location {
                tier: Some(&tier.name),
                ..*place
            };
            if !names.insert(&tier.name) {
                return Err(DeclarationError::Duplicate { place: place.here() });
            }
            if let Some(weight) = tier.weight {
                self.check_weight(&place, weight)?;
            }
            for (name, change) in &tier.limits {
                self.check_tier_limit(&place, name, change)?;
            }
        }
        let rewritten = self.limits.iter().filter(|limit| {
            let changes = self.tiers.iter().filter_map(|tier| tier.limits.get(&limit.name));
            limit.algorithm == Some(Algorithm::SlidingWindow)
                && changes
                    .filter_map(|change| change.window)
                    .any(|window| Some(window) != limit.window)
        });
        let logs = rewritten.count();
        let words = WORDS_OF_LOG * logs + WORDS_OF_OTHER * (self.limits.len() - logs);
        if words <= MAX_MIGRATED_WORDS {
            return Ok(());
        }
        Err(DeclarationError::Unsuitable {
            place: place.field("tiers"),
            reason: format!(
                "{logs} sliding windows of this set of {} limits have other lengths in some tiers, and so much cannot \
                 change in one step: declare one window for all tiers, or another algorithm",
                self.limits.len()
            ),
        })
    }

    fn check_weight(&self, place: &Location<'_>, weight: u32) -> Result<(), DeclarationError> {
        check_range(|| place.field("weight"), u64::from(weight), 1, MAX_WEIGHT)?;
        if self.limits.iter().any(Limit::is_overall) {
            return Ok(());
        }
        Err(DeclarationError::Misplaced {
            place: place.field("weight"),
            given: weight.to_string(),
            advice:
                "keys wait for each other only where they share a limit; remove it, or declare a limit with \
                     scope = \"all_keys\""
                    .to_owned(),
        })
    }

    fn check_tier_limit(
        &self,
        place: &Location<'_>,
        name: &str,
        change: &TierLimit,
    ) -> Result<(), DeclarationError> {
        let Some(limit) = self.limits.iter().find(|limit| limit.name == *name) else {
            let known: Vec<&str> = self.limits.iter().map(Limit::name).collect();
            return Err(DeclarationError::Misplaced {
                place: place.field("limits"),
                given: format!("{name:?}"),
                advice: format!("the set has no such limit; it has {}", known.join(", ")),
            });
        };
        let place = Location {
            limit: Some(&limit.name),
            ..*place
        };
        let misplaced = |field, advice: &str| {
            Err(DeclarationError::Misplaced {
                place: place.field(field),
                given: written(change, field),
                advice: advice.to_owned(),
            })
        };
        if limit.is_overall() {
            return misplaced(
                "capacity",
                "all keys share the limit, whatever their tiers; remove it, or `scope` of the limit",
            );
        }
        if limit.adaptive.is_some() {
            return misplaced(
                "capacity",
                "an adaptive capacity is found for each key separately; remove it",
            );
        }
        let is_unlimited = |amount: &Amount| amount.is_unlimited();
        if is_unlimited(&limit.capacity) || change.capacity.as_ref().is_some_and(is_unlimited) {
            return misplaced(
                "capacity",
                "what is unlimited counts nothing, so no tier can become or stop being unlimited; declare a capacity that \
                 is never reached",
            );
        }
        let is_calendar = |window: Option<Window>| window.is_some_and(Window::is_calendar);
        if change.window.is_some()
            && change.window != limit.window
            && (is_calendar(change.window) || is_calendar(limit.window))
        {
            return misplaced(
                "window",
                "a window of the calendar is the same for all tiers; remove it",
            );
        }
        Ok(())
    }

    /// The limit as it applies to keys of a tier.
    fn in_tier(&self, limit: &Limit, change: &TierLimit) -> Limit {
        let limit = self.with_entries(limit);
        let change = change.clone();
        Limit {
            capacity: change.capacity.unwrap_or(limit.capacity),
            rate: change.rate.or(limit.rate),
            interval: change.interval.or(limit.interval),
            window: change.window.or(limit.window),
            burst: change.burst.or(limit.burst),
            ..limit
        }
    }

    /// The limit with its default number of entries declared.
    ///
    /// In a set without keys, or if all keys have the limit together, the default serves any capacity, so that the capacity
    /// can be raised in the live segment. Otherwise each row has a log, which is no longer than the largest capacity of any
    /// tier: all tiers share the state.
    pub(in crate::declaration) fn with_entries(&self, limit: &Limit) -> Limit {
        let mut limit = limit.clone();
        if limit.effective_algorithm() == Some(Algorithm::SlidingWindow) && limit.entries.is_none() {
            limit.entries = Some(if self.has_row_of_each_key(&limit) {
                let useful = |capacity| self.useful_entries(&limit, capacity);
                self.capacities_of(&limit).map(useful).max().unwrap_or(1)
            } else {
                DEFAULT_ENTRIES
            });
        }
        limit
    }

    /// Whether each key has its own state of the limit.
    fn has_row_of_each_key(&self, limit: &Limit) -> bool {
        self.keyed.is_some() && !limit.is_overall()
    }

    /// How many entries a new segment would have for that capacity; without keys, how many of them it could use.
    fn useful_entries(&self, limit: &Limit, capacity: &Amount) -> u32 {
        let max = if self.has_row_of_each_key(limit) {
            MAX_DEFAULT_ENTRIES_OF_A_KEY
        } else {
            DEFAULT_ENTRIES
        };
        let units = limit.units(capacity).ok().flatten();
        let entries = units.and_then(|units| u32::try_from(units).ok());
        entries.map_or(max, |entries| entries.clamp(1, max))
    }

    /// Adds a note to each changed capacity of a sliding window whose log has fewer entries than a new segment's would
    /// have: their number cannot change in a live segment. `self` is the set after the change, in canonical form.
    pub(crate) fn note_short_logs(&self, differences: &mut [Difference]) {
        for limit in &self.limits {
            let Some(entries) = limit.entries else { continue };
            let mut note = |place: &str, capacity: &Amount| {
                let useful = self.useful_entries(limit, capacity);
                let path = format!("set {:?} / {place} / capacity", self.name);
                if let Some(difference) = differences.iter_mut().find(|it| it.path() == path)
                    && entries < useful
                {
                    difference.add_note(&format!(
                        "its log keeps {entries} entries: beyond as many requests in a window, units come back late by up \
                         to 1/{entries} of it; only a new segment can have more, by `entries = {useful}`"
                    ));
                }
            };
            note(&format!("limit {:?}", limit.name), &limit.capacity);
            for tier in &self.tiers {
                if let Some(capacity) = tier.limits.get(&limit.name).and_then(|it| it.capacity.as_ref()) {
                    note(
                        &format!("tier {:?} / limits / {}", tier.name, limit.name),
                        capacity,
                    );
                }
            }
        }
    }

    /// The most that the capacity of a limit can be for any key, in whole units, if it is valid and not unlimited.
    pub(in crate::declaration) fn max_units_in_any_tier(&self, limit: &Limit) -> Option<u64> {
        let of_tiers = self.capacities_of(limit).skip(1);
        let units = of_tiers.filter_map(|capacity| limit.units(capacity).ok()?);
        units.fold(limit.max_units(), |max, units| max.map(|max| max.max(units)))
    }

    /// The capacities of a limit: first for keys in `default`, then for those in tiers that change it.
    fn capacities_of<'a>(&'a self, limit: &'a Limit) -> impl Iterator<Item = &'a Amount> {
        let of_tiers = self.tiers.iter();
        let of_tiers = of_tiers.filter_map(|tier| tier.limits.get(&limit.name)?.capacity.as_ref());
        std::iter::once(&limit.capacity).chain(of_tiers)
    }

    /// The tiers in canonical form. If one changes a limit, every field that it could change there is written out.
    pub(in crate::declaration) fn canonical_tiers(&self) -> Vec<Tier> {
        let canonical = |tier: &Tier| {
            let limits = tier.limits.iter().map(|(name, change)| {
                let limit = self.limits.iter().find(|limit| limit.name == *name);
                let meant = limit.map(|limit| TierLimit::of(self.in_tier(limit, change).canonical()));
                (name.clone(), meant.unwrap_or_else(|| change.clone()))
            });
            Tier {
                name: tier.name.clone(),
                weight: tier.weight.filter(|weight| *weight != DEFAULT_WEIGHT),
                limits: map_of(limits),
            }
        };
        self.tiers.iter().map(canonical).collect()
    }

    /// The tiers with everything in `change` that can change. Both are canonical. A set that has tiers can be given
    /// more; the first one would need room in each row.
    pub(in crate::declaration) fn tiers_changed_to(&self, change: &Self) -> Vec<Tier> {
        let named = |tiers: &[Tier], name: &str| tiers.iter().find(|tier| tier.name == name).cloned();
        let kept = self.tiers.iter();
        let kept = kept.map(|tier| named(&change.tiers, &tier.name).unwrap_or_else(|| tier.clone()));
        let added = change.tiers.iter();
        let added = added.filter(|tier| !self.tiers.is_empty() && named(&self.tiers, &tier.name).is_none());
        kept.chain(added.cloned()).collect()
    }

    /// Rewrites each limit of a tier for which `is_per_window` is true as a capacity per window.
    pub(in crate::declaration) fn tiers_per_window(&mut self, is_per_window: impl Fn(&str) -> bool) {
        for (name, change) in self.tiers.iter_mut().flat_map(|tier| &mut tier.limits) {
            if let (true, Some(limit)) = (
                is_per_window(name),
                self.limits.iter().find(|limit| limit.name == *name),
            ) {
                *change = change.per_window_of(limit);
            }
        }
    }
}
