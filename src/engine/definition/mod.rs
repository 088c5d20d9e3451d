//! What a set is defined as: its rules, tiers and overrides, and how definitions follow one another.

pub(super) mod backlog_limit;
pub(super) mod change;
pub(super) mod definition_bits;
pub(super) mod limit_rules;
pub(super) mod overrides;
pub(super) mod own_capacities;
pub(crate) mod plan;
pub(super) mod row_tier;
pub(super) mod set_outline;
pub(super) mod set_rules;
