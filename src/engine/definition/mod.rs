//! What a set is defined as: its rules, tiers and overrides, and how definitions follow one another.

pub(super) mod apply_definition;
pub(super) mod definition_bits;
pub(super) mod definitions;
pub(super) mod limit_rules;
pub(super) mod overrides;
pub(super) mod own_capacities;
pub(crate) mod plan;
pub(in crate::engine) mod row_change;
pub(super) mod row_tier;
pub(super) mod set_outline;
pub(super) mod set_rules;
pub(super) mod versions;
