//! Joins rules and ground.

pub(crate) mod plan;
