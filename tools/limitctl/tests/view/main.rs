//! Showing a segment without changing it: by key, in a terminal, in a browser, line by line, and while processes die.

mod access;
mod amounts;
mod death;
mod export;
mod fields;
mod keys;
mod overall;
mod secrets;
mod serve;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod top;
mod watch;

/// Not a test: plays the role of processes that the tests start.
#[test]
fn actor() {
    support::play();
}
