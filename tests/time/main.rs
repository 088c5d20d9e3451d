//! The clock of a segment: what it is read from, what a test makes it say, and that no rate is exceeded by it.

mod clock_sources;
mod rate_bound;
#[path = "../scene/mod.rs"]
mod scene;
mod time_zones;
mod virtual_clock;
mod waiting;
