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

/// The processes of the tests: copies of this program that run this test alone.
#[test]
fn actor() {
    support::play();
}
