//! Limits that hosts share, and their store.

#[path = "../../../../fleet/tests/scene/mod.rs"]
mod scene;
mod shared_limits;
mod store;
#[path = "../support/mod.rs"]
mod support;
