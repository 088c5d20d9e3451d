//! What all definitions of a set agree in: what may be known of it before its lock is held.

use super::plan::{Kind, PrefixLengths, SetPlan};
use crate::shm::layout::MOST_LIMITS;

/// A set as every definition of it has it. What a change may bring, which includes every rule, is not in it.
#[derive(Clone, Debug)]
pub(crate) struct SetOutline {
    pub(crate) name: String,
    /// In declaration order.
    pub(crate) limits: Vec<LimitOutline>,
    /// Whether the first bytes of a key are kept for people to read.
    pub(crate) stores_keys: bool,
    /// The limits that give back, as a bit mask.
    pub(crate) held_mask: u32,
    /// The first limit without a default cost.
    pub(crate) first_rate: Option<usize>,
    /// Whether a capacity moves with how the work goes.
    pub(super) adapts: bool,
    pub(super) reads_utc: bool,
    /// The prefix lengths whose networks the limits count, the shortest first; none where keys are any bytes.
    pub(crate) levels: Vec<PrefixLengths>,
}

/// One limit of a set.
#[derive(Clone, Debug)]
pub(crate) struct LimitOutline {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

impl SetOutline {
    pub(crate) fn of(plan: &SetPlan) -> Self {
        let limits = plan.limits.iter().map(|limit| LimitOutline {
            name: limit.name.clone(),
            kind: limit.kind,
        });
        Self {
            name: plan.name.clone(),
            limits: limits.collect(),
            stores_keys: plan.keyed.is_some_and(|keyed| keyed.store_keys),
            held_mask: plan.held_limits().iter().fold(0, |mask, index| mask | 1 << index),
            first_rate: plan.limits.iter().position(|limit| limit.kind == Kind::Rate),
            adapts: plan.limits.iter().any(|limit| limit.adaptive.is_some()),
            reads_utc: plan.limits.iter().any(|limit| limit.rule.reads_utc()),
            levels: plan.levels(),
        }
    }

    /// The name of a limit.
    pub(crate) fn limit_name(&self, index: usize) -> String {
        self.limits
            .get(index)
            .map_or_else(String::new, |limit| limit.name.clone())
    }

    /// The bit mask of all limits.
    pub(crate) fn all_limits(&self) -> u32 {
        debug_assert!(self.limits.len() <= MOST_LIMITS);
        (1 << self.limits.len()) - 1
    }
}
