//! Simulations: what they say of a declaration, against traces worked out by hand.

mod keys;
mod reports;
#[path = "../support/mod.rs"]
mod support;
mod traces;
