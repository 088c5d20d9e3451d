//! How a set and its limits stand, in the figures that every view shows.

use serde::Serialize;
use shmlimit::{LimitSnapshot, SetSnapshot};

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// Some of all that may be used at once.
    Of { used: u64, capacity: u64 },
    /// There is one answer for each key, and none for all.
    ByKey,
    /// There is nothing to use up.
    Unlimited,
}

/// How much of a limit of a set is used.
pub fn usage(set: &SetSnapshot, limit: &LimitSnapshot) -> Usage {
    let Some(capacity) = limit.found_capacity.or(limit.burst) else {
        return Usage::Unlimited;
    };
    if set.keys.is_some() {
        return Usage::ByKey;
    }
    Usage::Of {
        used: capacity.saturating_sub(limit.remaining),
        capacity,
    }
}

/// Permits of live processes that hold something of a limit.
pub fn held(set: &SetSnapshot, limit: &str) -> u64 {
    let holds = set.holds.iter().filter(|hold| hold.owner_alive && !hold.returned);
    holds.filter(|hold| hold.amounts.contains_key(limit)).count() as u64
}

/// Requests that wait.
pub fn queued(set: &SetSnapshot) -> u64 {
    let waiting = set.tickets.iter().filter(|ticket| !ticket.granted);
    waiting.filter(|ticket| ticket.owner_alive).count() as u64
}
