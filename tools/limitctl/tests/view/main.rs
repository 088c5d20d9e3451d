//! What shows a segment and changes nothing: by key, in a terminal, in a browser, line by line, and while processes die.

mod access;
mod death;
mod export;
mod keys;
mod serve;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod top;
mod watch;

/// Not a test: the part that processes play that the tests start.
#[test]
fn actor() {
    support::play();
}
