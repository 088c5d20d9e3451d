//! Limits with credit, which a process draws in batches and admits from by itself.

mod automatic;
mod batches;
mod bounds;
mod permits;
#[path = "../scene/mod.rs"]
mod scene;
