//! What creates segments and changes them.

mod apply;
mod create_all;
mod mismatch;
mod overrides;
#[path = "../support/mod.rs"]
mod support;
mod tiers;
