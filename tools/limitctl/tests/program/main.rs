//! The program: its verbs, the commands that it runs, and how it is installed.

mod directories;
mod examples;
mod exec;
mod files_written;
mod first_steps;
mod held_until_the_end;
#[path = "../../../../tests/scene/names.rs"]
mod names;
mod packaging;
mod probes;
#[path = "../support/mod.rs"]
mod support;
mod verbs;

/// Not a test: the processes that the tests start are copies of this program that run only this, and play a role.
#[test]
fn actor() {
    support::play();
}
