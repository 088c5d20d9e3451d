//! What a segment shows about its leases.

use std::time::Duration;

use serde::Serialize;

use super::store_problem::StoreProblem;
use crate::choices::Outage;
use crate::limit::LeaseState;

/// A copy of what a segment knows about its fleet. For a [directory](crate::Segment#a-file-for-each-set), this covers
/// all its files together, and each [set](crate::snapshot::SetSnapshot::fleet) has the copy of its own file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FleetSnapshot {
    /// Where the store is; for several files, according to the first.
    pub url: String,
    /// The declared name of this host, if any.
    pub host_name: Option<String>,
    /// The number that the store knows this host by: random, and new after each cold start. For a directory, its lower
    /// 32 bits are zero; see [`Fleet::host`](super::Fleet::host).
    pub host: u64,
    /// The process that asks the store; `None` if none does. For several files, `None` or a dead process if that is
    /// true of one of them.
    pub duty: Option<DutySnapshot>,
    /// How many times a process took duty over from one that had died with it or kept it for too long; for several
    /// files, the largest number.
    pub takeovers: u64,
    /// Whether the store, or a server of the cluster, evicts keys when its memory is used up, as the process on duty
    /// found when it connected. A limit that is evicted starts over.
    pub evicts: bool,
    /// What the numbers of all files of the directory have in common; zero for a file by itself.
    #[serde(skip)]
    pub(in crate::api) directory_number: u64,
}

impl FleetSnapshot {
    /// For a file of a directory: what it has in common with the directory's other files.
    pub(in crate::api) fn of_directory(mut self) -> Self {
        if self.directory_number != 0 {
            self.host = self.directory_number;
        }
        self
    }

    /// Combines what two files of a directory know.
    pub(in crate::api) fn and(mut self, other: Self) -> Self {
        self.takeovers = self.takeovers.max(other.takeovers);
        self.evicts |= other.evicts;
        if self.is_asking() && !other.is_asking() {
            self.duty = other.duty;
        }
        self
    }

    fn is_asking(&self) -> bool {
        self.duty.as_ref().is_some_and(|duty| duty.alive)
    }
}

/// The process that asks the store for leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DutySnapshot {
    /// The slot of the process.
    pub slot: u64,
    /// Its process id, if it still has the slot.
    pub pid: Option<u64>,
    /// The PID namespace of `pid`, if it is not the caller's.
    pub pid_namespace: Option<u64>,
    /// Whether it is alive.
    pub alive: bool,
    /// How long a sign of life has been overdue: the process is stopped or hangs, and another that wants duty takes
    /// it over. `None` if it is in time.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub overdue_for: Option<Duration>,
}

/// A copy of what a host has leased of one limit.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LeaseSnapshot {
    /// The limit's key in the store.
    pub key: String,
    /// What happens to the limit while the store is down.
    pub outage: Outage,
    /// If each key has such a limit: how many keys have something leased, or something that the store does not know
    /// about yet. What is left, the share and so on are then zero, and the other fields say what is known of the store.
    /// `None` if all requests share the limit.
    pub keys: Option<u64>,
    /// Units that are leased and not spent; for concurrency, places that are leased and not held. Zero if the lease
    /// is over.
    pub left: u64,
    /// How much longer the leased units may be spent; zero if the lease is over.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds")]
    pub valid_for: Duration,
    /// The last fair share for one lease length, in units.
    pub share: u64,
    /// How long units are leased for, as declared or as it follows from the limit.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds")]
    pub length: Duration,
    /// How many hosts, this one included, wanted units when the store last answered; 0 if it never has.
    pub hosts: u64,
    /// How long the store's answers have taken of late; `None` if it has never answered.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub round_trip: Option<Duration>,
    /// About how much of the rate can be used, in percent, with this burst, this lease and answers that take this long:
    /// 100 if the burst suffices. `None` for limits whose units do not come back evenly.
    pub usable_percent: Option<u64>,
    /// The least burst with which all of the rate could be used; `None` for limits whose units do not come back evenly.
    pub sufficient_burst: Option<u64>,
    /// Why the store granted nothing when it was last asked; `None` if it answered.
    pub problem: Option<StoreProblem>,
    /// What the store named with that problem, such as the command that the user may not run.
    pub problem_names: Option<String>,
    /// Whether nothing can be spent now because of that problem, so that requests are refused. False while a lease or
    /// the [outage policy](crate::declare::Outage) bridges it.
    pub refusing: bool,
    /// How long the store has been down for this limit; `None` if it is not.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub out_for: Option<Duration>,
    /// How long ago the store last answered; `None` if it never has.
    #[serde(serialize_with = "crate::api::snapshot::as_seconds_if_any")]
    pub answered_ago: Option<Duration>,
    /// The sequence number of the latest request.
    pub sequence: u64,
    /// Whether the latest request is still unanswered.
    pub asking: bool,
    /// Whether the host gives everything back and asks for nothing: see
    /// [`Fleet::set_draining`](super::Fleet::set_draining).
    pub draining: bool,
    /// Whether it has given everything back: the store knows what was spent, and nothing is leased or held.
    pub given_back: bool,
    /// How many leases in a row have run out before any of their units was spent.
    pub unused_in_a_row: u64,
    /// The counters.
    pub counts: LeaseCounts,
}

/// The counters of the leases of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaseCounts {
    /// Answers that granted something.
    pub grants: u64,
    /// Requests recorded for sending; a repeated one counts once.
    pub requests: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Units that were still leased when their lease ran out.
    pub expired_units: u64,
}

impl LeaseSnapshot {
    pub(in crate::api) fn of(key: &str, state: &LeaseState) -> Self {
        let (problem, problem_names) = StoreProblem::from_code(state.problem).unzip();
        Self {
            key: key.to_owned(),
            outage: state.outage,
            keys: state.keys,
            left: state.left,
            valid_for: Duration::from_nanos(state.valid_for),
            share: state.share,
            length: Duration::from_nanos(state.length),
            hosts: state.hosts,
            round_trip: state.round_trip.map(Duration::from_nanos),
            usable_percent: state.usable.map(|thousandths| thousandths / 10),
            sufficient_burst: state.sufficient_burst,
            problem,
            problem_names: problem_names.flatten(),
            refusing: state.is_refusing,
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

    /// Combines what two shards of a keyed set know.
    pub(in crate::api) fn and(self, other: Self) -> Self {
        let (problem, problem_names) = match self.problem {
            Some(_) => (self.problem, self.problem_names),
            None => (other.problem, other.problem_names),
        };
        Self {
            problem,
            problem_names,
            keys: self.keys.zip(other.keys).map(|(one, more)| one + more),
            refusing: self.refusing || other.refusing,
            out_for: self.out_for.max(other.out_for),
            answered_ago: [self.answered_ago, other.answered_ago]
                .into_iter()
                .flatten()
                .min(),
            draining: self.draining || other.draining,
            given_back: self.given_back && other.given_back,
            counts: LeaseCounts {
                grants: self.counts.grants.saturating_add(other.counts.grants),
                requests: self.counts.requests.saturating_add(other.counts.requests),
                failures: self.counts.failures.saturating_add(other.counts.failures),
                expired_units: self
                    .counts
                    .expired_units
                    .saturating_add(other.counts.expired_units),
            },
            ..self
        }
    }
}
