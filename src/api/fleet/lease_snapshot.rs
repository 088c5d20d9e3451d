//! What a segment says of its leases, to those who look.

use std::time::Duration;

use serde::Serialize;

use super::store_problem::StoreProblem;
use crate::api::declaration::Outage;
use crate::limit::LeaseState;

/// The fleet that a segment is part of, copied.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FleetSnapshot {
    /// Where the store is.
    pub url: String,
    /// What the declaration calls this host, if it does.
    pub host_name: Option<String>,
    /// What the store knows this host by: random, another one after each cold start.
    pub host: u64,
    /// The process that asks the store; none where none does.
    pub duty: Option<DutySnapshot>,
    /// How often a process took duty over from one that had died with it.
    pub takeovers: u64,
}

/// The process that asks the store for leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DutySnapshot {
    /// The slot of the process.
    pub slot: u64,
    /// Its process id, where the slot still is its own.
    pub pid: Option<u64>,
    /// The PID namespace that the id is of, where the segment's processes may be of several.
    pub pid_namespace: Option<u64>,
    /// Whether it is alive.
    pub alive: bool,
    /// For how long it should have been heard of: it is stopped or hangs, and another process that would ask takes duty over.
    /// None where it is in time.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub overdue_for: Option<Duration>,
}

/// What a host has leased of one limit, copied.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LeaseSnapshot {
    /// The limit's key in the store.
    pub key: String,
    /// What becomes of it while the store is out.
    pub outage: Outage,
    /// Units that are leased and not spent: of concurrency, places that are leased and not held. Zero where the lease is
    /// over.
    pub left: u64,
    /// For how long what is leased may still be spent; zero where the lease is over.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds")]
    pub valid_for: Duration,
    /// The last fair share for one lease length, in units.
    pub share: u64,
    /// Why the store has granted nothing the last time it was asked; none where it answered.
    pub problem: Option<StoreProblem>,
    /// For how long the store has been out for this limit; none where it is not.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub out_for: Option<Duration>,
    /// How long ago the store answered last; none where it never has.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub answered_ago: Option<Duration>,
    /// The sequence number of the latest request.
    pub sequence: u64,
    /// Whether that is not answered yet.
    pub asking: bool,
    /// Whether the host gives everything back and asks for nothing: see
    /// [`Fleet::set_draining`](super::Fleet::set_draining).
    pub draining: bool,
    /// Whether it has given everything back: the store knows what was spent, and nothing is leased or held.
    pub given_back: bool,
    /// How many leases in a row have run out before any unit of them was spent.
    pub unused_in_a_row: u64,
    /// What was counted.
    pub counts: LeaseCounts,
}

/// What was counted of the leases of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaseCounts {
    /// Answers that granted something.
    pub grants: u64,
    /// Requests that were kept to be sent; a repeated one counts once.
    pub requests: u64,
    /// Attempts that came to nothing.
    pub failures: u64,
    /// Units that were leased when their lease ran out.
    pub expired_units: u64,
}

impl LeaseSnapshot {
    pub(in crate::api) fn of(key: &str, state: &LeaseState) -> Self {
        Self {
            key: key.to_owned(),
            outage: state.outage.into(),
            left: state.left,
            valid_for: Duration::from_nanos(state.valid_for),
            share: state.share,
            problem: StoreProblem::from_code(state.problem),
            out_for: state.out_for.map(Duration::from_nanos),
            answered_ago: state.answered_ago.map(Duration::from_nanos),
            sequence: state.sequence,
            asking: state.is_asking,
            draining: state.is_draining,
            given_back: state.is_given_back,
            unused_in_a_row: state.unused_in_a_row,
            counts: LeaseCounts {
                grants: state.grants,
                requests: state.requests,
                failures: state.failures,
                expired_units: state.expired_units,
            },
        }
    }
}
