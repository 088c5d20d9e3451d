//! What all definitions of a set agree on, and therefore what may be known of it without holding its lock.

use crate::choices::{Kind, Scope};
use crate::engine::terms::decision::notes_of_overrides;
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::plan::{KeyedPlan, PrefixLengths, SetPlan};
use crate::limit::{Rule, RuleOperations};
use crate::shm::layout::records::MAX_LIMITS;

/// What every definition of a set has in common. What a change may alter, which includes every rule, is not here.
#[derive(Clone, Debug)]
pub(crate) struct SetOutline {
    pub(crate) name: String,
    /// In declaration order.
    pub(crate) limits: Vec<LimitOutline>,
    /// Whether the first bytes of a key are kept for people to read.
    pub(crate) stores_keys: bool,
    /// The limits that give back, as a bit mask.
    pub(crate) held_mask: u32,
    /// The limits that all keys have together.
    pub(crate) overall: LimitMask,
    /// The first limit without a default cost.
    pub(crate) first_rate: Option<usize>,
    /// Whether any capacity adapts to how the work goes.
    pub(in crate::engine) adapts: bool,
    pub(in crate::engine) reads_utc: bool,
    /// The prefix lengths whose networks the limits count, shortest first; empty if keys are any bytes.
    pub(crate) levels: Vec<PrefixLengths>,
    has_tiers: bool,
    has_overrides: bool,
    /// Whether any limit has room for a lease, even if hosts do not share it now.
    pub(crate) has_lease_room: bool,
    /// How much a decision may note besides what it says of each limit.
    pub(crate) notes_beside: usize,
}

/// One limit of a set.
#[derive(Clone, Debug)]
pub(crate) struct LimitOutline {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) unit: String,
}

impl SetOutline {
    pub(crate) fn of(plan: &SetPlan) -> Self {
        let limits = plan.limits.iter().map(|limit| LimitOutline {
            name: limit.name.clone(),
            kind: limit.kind,
            unit: limit.unit.clone(),
        });
        Self {
            name: plan.name.clone(),
            limits: limits.collect(),
            stores_keys: plan.keyed.is_some_and(|keyed| keyed.store_keys),
            held_mask: plan.held_limits().iter().fold(0, |mask, index| mask | 1 << index),
            overall: LimitMask::of(
                (0..plan.limits.len()).filter(|index| plan.limits[*index].scope == Scope::AllKeys),
            ),
            first_rate: plan.limits.iter().position(|limit| limit.kind == Kind::Rate),
            adapts: plan
                .limits
                .iter()
                .any(|limit| matches!(limit.rule, Rule::Adaptive(_))),
            reads_utc: plan.limits.iter().any(|limit| limit.rule.reads_utc()),
            levels: plan.levels(),
            has_tiers: !plan.tiers.is_empty(),
            has_overrides: plan.keyed.is_some_and(|keyed| keyed.overrides),
            has_lease_room: plan.limits.iter().any(|limit| limit.has_lease_room),
            notes_beside: match plan.keyed {
                None => 0,
                Some(KeyedPlan { overrides: false, .. }) => 1,
                Some(KeyedPlan { overrides: true, .. }) => 1 + notes_of_overrides(plan.limits.len()),
            },
        }
    }

    /// Whether keys can be in tiers other than `default`.
    pub(crate) fn has_tiers(&self) -> bool {
        self.has_tiers
    }

    /// Whether keys can have capacities of their own.
    pub(crate) fn has_overrides(&self) -> bool {
        self.has_overrides
    }

    /// Whether keys can have other limits than the declared ones, through tiers or capacities of their own.
    #[inline]
    pub(in crate::engine) fn differs_by_key(&self) -> bool {
        self.has_tiers || self.has_overrides
    }

    /// Whether all keys have some limit together. The set then has one shard.
    #[inline(always)]
    pub(crate) fn has_overall(&self) -> bool {
        self.overall.0 != 0
    }

    /// Whether all keys have a limit together, so that it belongs to no key.
    pub(crate) fn is_overall(&self, index: usize) -> bool {
        self.overall.contains(index)
    }

    /// Whether each key has a limit for itself, or all keys have it together.
    pub(crate) fn scope(&self, index: usize) -> Scope {
        if self.is_overall(index) {
            Scope::AllKeys
        } else {
            Scope::Key
        }
    }

    /// The name of a limit.
    pub(crate) fn limit_name(&self, index: usize) -> String {
        self.limits
            .get(index)
            .map_or_else(String::new, |limit| limit.name.clone())
    }

    /// The size of a limit's unit, as it was declared.
    pub(crate) fn limit_unit(&self, index: usize) -> String {
        self.limits
            .get(index)
            .map_or_else(String::new, |limit| limit.unit.clone())
    }

    /// The bit mask of all limits.
    pub(crate) fn all_limits(&self) -> u32 {
        debug_assert!(self.limits.len() <= MAX_LIMITS);
        (1 << self.limits.len()) - 1
    }
}
