//! The definitions of a segment's sets: putting them into force, changing, finding and compiling them.

pub(crate) mod apply;
pub(super) mod bring_into_force;
pub(crate) mod compiled_definitions;
