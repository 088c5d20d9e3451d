//! Limits that all keys have together, beside those that each key has for itself.

mod crowds;
mod deciding;
mod keeping;
mod shares;
mod waiting;

use std::time::Duration;

use shmlimit::declare::Scope;
use shmlimit::{Keyed, Limit, SetDeclaration};

const MINUTE: Duration = Duration::from_secs(60);

/// A limit that each key has for itself.
fn own(capacity: u64) -> Limit {
    Limit::calls("own", capacity, MINUTE)
}

/// A limit of all keys together.
fn overall(capacity: u64) -> Limit {
    Limit::calls("overall", capacity, MINUTE).scope(Scope::AllKeys)
}

fn overall_places(capacity: u64) -> Limit {
    Limit::concurrency("places", capacity).scope(Scope::AllKeys)
}

fn keyed() -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(100))
}
