//! Simulations of declarations, compared with traces worked out by hand.

mod keys;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod traces;
mod waits;
