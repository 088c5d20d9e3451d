//! One definition after another, and one key after its change: what a live segment goes through.

pub(in crate::engine) mod apply_definition;
pub(in crate::engine) mod definitions;
pub(in crate::engine) mod row_change;
pub(in crate::engine) mod versions;
