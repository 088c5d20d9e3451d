//! What doctor and selftest find in real situations.

mod bystanders;
mod file_systems;
mod files;
mod frozen;
#[path = "../../../../tests/layout_mirror/mod.rs"]
mod layout_mirror;
mod processes;
mod selftest;
#[path = "../support/mod.rs"]
mod support;

/// Not a test: plays the role of processes that the tests start.
#[test]
fn actor() {
    support::play();
}
