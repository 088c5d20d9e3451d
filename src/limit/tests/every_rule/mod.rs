//! What is true of every rule.

pub(super) mod damaged_state_tests;
mod declarations_tests;
mod migrate_tests;
mod near_tests;
mod refund_tests;
mod replenished_tests;
mod share_tests;
