//! Limits with credit, which a process draws in batches, to admit from them on its own.

mod automatic;
mod batches;
mod bounds;
mod permits;
#[path = "../scene/mod.rs"]
mod scene;
