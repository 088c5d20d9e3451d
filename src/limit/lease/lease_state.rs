//! What a lease's record tells its readers.

use super::record::LeaseWord;
use super::{Leased, Spendable};
use crate::choices::Outage;
use crate::limit::{Now, State};

/// What is leased of a limit, and how its store fares. Times are in nanoseconds before or after the instant of
/// reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseState {
    pub(crate) outage: Outage,
    /// How many keys have something leased or unreported; `None` if all requests share the limit.
    pub(crate) keys: Option<u64>,
    pub(crate) left: u64,
    pub(crate) valid_for: u64,
    pub(crate) share: u64,
    pub(crate) length: u64,
    /// How many hosts wanted something at the last answer.
    pub(crate) hosts: u64,
    /// How long answers take.
    pub(crate) round_trip: Option<u64>,
    /// What part of the rate can be used with that, in thousandths.
    pub(crate) usable: Option<u64>,
    /// The burst with which all of it could be used.
    pub(crate) sufficient_burst: Option<u64>,
    /// A code; zero if there is none.
    pub(crate) problem: u64,
    /// Nothing can be spent because of the problem.
    pub(crate) is_refusing: bool,
    pub(crate) out_for: Option<u64>,
    pub(crate) answered_ago: Option<u64>,
    pub(crate) sequence: u64,
    pub(crate) is_asking: bool,
    pub(crate) unused_in_a_row: u64,
    pub(crate) is_draining: bool,
    /// The host is draining, and nothing is left to give back or to report.
    pub(crate) is_given_back: bool,
    pub(crate) grants: u64,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    pub(crate) expired_units: u64,
}

/// What a key has leased, and what it waits for. Times are in nanoseconds from the instant of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyLeaseState {
    pub(crate) left: u64,
    pub(crate) valid_for: u64,
    /// How much longer the store has no unit to grant, as far as it has said.
    pub(crate) free_in: u64,
    /// Units spent that the store does not know of.
    pub(crate) unreported: u64,
    pub(crate) is_asking: bool,
}

impl Leased {
    /// Reads the record of a key.
    pub(crate) fn read_key_state(&self, state: &(impl State + ?Sized), now: Now) -> KeyLeaseState {
        let get = |word| self.get(state, word);
        let valid_for = get(LeaseWord::ValidUntil).saturating_sub(now.monotonic);
        KeyLeaseState {
            left: if valid_for > 0 { self.left(state) } else { 0 },
            valid_for,
            free_in: get(LeaseWord::FreeAt).saturating_sub(now.monotonic),
            unreported: get(LeaseWord::Spent),
            is_asking: get(LeaseWord::Asked) != 0,
        }
    }

    /// Reads the record.
    pub(crate) fn read_state(&self, state: &(impl State + ?Sized), now: Now) -> LeaseState {
        let get = |word| self.get(state, word);
        let since = |word| Some(get(word)).filter(|instant| *instant > 0);
        let ago = |instant: u64| now.monotonic.saturating_sub(instant);
        let valid_for = get(LeaseWord::ValidUntil).saturating_sub(now.monotonic);
        LeaseState {
            outage: self.outage,
            keys: None,
            left: if valid_for > 0 { self.left(state) } else { 0 },
            valid_for,
            share: get(LeaseWord::Share),
            length: self.length(),
            hosts: get(LeaseWord::Hosts),
            round_trip: since(LeaseWord::RoundTrip),
            usable: self.usable_part(get(LeaseWord::RoundTrip)),
            sufficient_burst: self.sufficient_burst(get(LeaseWord::RoundTrip)),
            problem: get(LeaseWord::Problem),
            is_refusing: get(LeaseWord::Problem) != 0
                && get(LeaseWord::Draining) == 0
                && if self.is_by_key() {
                    // Some key has nothing leased.
                    matches!(self.outage, Outage::Deny | Outage::SpendOut)
                } else {
                    self.spendable(state, now) == Spendable::Units(0)
                },
            // While the policy goes on after the store is back, the store is not out.
            out_for: since(LeaseWord::OutSince)
                .filter(|_| get(LeaseWord::PolicyUntil) == 0)
                .map(ago),
            answered_ago: since(LeaseWord::AnsweredAt).map(ago),
            sequence: get(LeaseWord::Sequence),
            is_asking: get(LeaseWord::Asked) != 0,
            unused_in_a_row: get(LeaseWord::Unused),
            is_draining: get(LeaseWord::Draining) != 0,
            is_given_back: get(LeaseWord::Draining) != 0 && self.due_at(state, now).is_none(),
            grants: get(LeaseWord::Grants),
            requests: get(LeaseWord::Requests),
            failures: get(LeaseWord::Failures),
            expired_units: get(LeaseWord::ExpiredUnits),
        }
    }
}
