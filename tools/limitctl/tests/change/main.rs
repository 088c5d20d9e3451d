//! Creating and changing segments.

mod apply;
mod create_all;
mod mismatch;
mod overrides;
#[path = "../support/mod.rs"]
mod support;
mod throttle;
mod tiers;
mod time_zones;
