//! What changes in a live segment: the definition of a set, and what a key is limited by.

pub(in crate::engine) mod apply_definition;
pub(in crate::engine) mod definitions;
pub(in crate::engine) mod row_change;
pub(in crate::engine) mod versions;
