//! The terms of a decision: what is asked for, how it was decided, and under which plan.

pub(super) mod credit_word;
pub(super) mod decided;
pub(super) mod decision;
pub(super) mod definition_bits;
pub(super) mod drawn;
pub(super) mod key_identity;
pub(super) mod own_capacities;
pub(crate) mod plan;
pub(super) mod resolution;
