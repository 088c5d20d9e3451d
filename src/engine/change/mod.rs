//! What changes in a live segment: the definition of a set, and what a key is limited by.

pub(super) mod apply_definition;
pub(super) mod definitions;
pub(super) mod overrides;
pub(super) mod row_change;
pub(super) mod row_tier;
