//! Limits that each key has of its own, and that hosts share.
//!
//! Most keys are seldom used. So nothing is leased for a key until it is used, and nothing is kept once it is not: the
//! first units of a key on a host are admitted *unleased*, and reported. The store charges them even beyond the burst,
//! and names an instant until which it has no unit to grant; until then this host admits none unleased either. So
//! unleased units can exceed the limit by that many for each host at once, but never the rate in the long run.
//!
//! A row may be given to another key once nothing is left to report, and nothing that the store said still holds. When
//! the key comes back, it begins anew. So its requests are numbered by the time, and what they report counts from the
//! latest answer.

use super::record::LeaseWord;
use super::{Answer, Leased, Problem};
use crate::limit::{Now, State, StateMut};

/// How far the segment clock is shifted for a sequence number: about a microsecond each, so that a store that counts
/// with doubles counts them exactly for centuries.
const SEQUENCE_SHIFT: u32 = 10;

/// What became of a request for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseOutcome {
    /// It was kept for sending.
    Asked,
    Answered(Answer),
    /// And when to ask again, on the segment clock.
    Failed(Problem, u64),
}

/// Low water of a row that is not on the list of rows to ask for: the next unit that is spent puts it there.
const NOT_LISTED: u64 = u64::MAX;

/// What keys have to report and to ask for is gathered for one part in this many of a lease, so that many keys share a
/// call of the store.
const GATHERED_PART: u64 = 4;

/// But for no less and no more than this, in nanoseconds.
const SHORTEST_GATHERING: u64 = 100_000_000;
const LONGEST_GATHERING: u64 = 500_000_000;

impl Leased {
    /// Whether each key has a limit of its own.
    pub(crate) fn is_by_key(&self) -> bool {
        self.unleased.is_some()
    }

    /// How many more units may be spent although nothing is leased.
    pub(super) fn unleased_left(&self, state: &(impl State + ?Sized), now: Now) -> u64 {
        let Some(unleased) = self.unleased else {
            return 0;
        };
        let is_refused = now.monotonic < self.get(state, LeaseWord::FreeAt);
        if is_refused || self.is_valid(state, now) {
            return 0;
        }
        let spent = self.get(state, LeaseWord::Spent);
        unleased.saturating_sub(spent.saturating_sub(self.get(state, LeaseWord::Allowance)))
    }

    /// How long until the store has a unit again, in nanoseconds, if unleased units are enough for `cost`.
    pub(super) fn free_in(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Option<u64> {
        let left = self.get(state, LeaseWord::FreeAt).saturating_sub(now.monotonic);
        self.unleased
            .is_some_and(|unleased| left > 0 && cost <= unleased)
            .then_some(left)
    }

    /// Whether nothing would be lost if the row were given to another key.
    pub(super) fn is_forgettable(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let get = |word| self.get(state, word);
        get(LeaseWord::Asked) == 0
            && get(LeaseWord::Spent) == 0
            && get(LeaseWord::Refunded) == 0
            && get(LeaseWord::Unmet) == 0
            && get(LeaseWord::FreeAt) <= now.monotonic
            && self.left_in_time(state, now) == 0
            && self.in_use(state) == 0
    }

    /// Begins a row for a key that has none. `outage` is the record of the shard, which knows whether the store is out.
    pub(crate) fn begin_key(&self, state: &mut (impl StateMut + ?Sized), outage: &(impl State + ?Sized)) {
        self.begin(state);
        self.put(state, LeaseWord::Sequence, 0);
        self.put(state, LeaseWord::Identity, 0);
        self.copy_outage(state, outage);
        self.put(state, LeaseWord::Draining, self.get(outage, LeaseWord::Draining));
    }

    /// Starts or stops draining, as the record of the shard says: the process that told all rows may have died on the way.
    pub(crate) fn follow_draining(
        &self,
        state: &mut (impl StateMut + ?Sized),
        of_shard: &(impl State + ?Sized),
    ) {
        let draining = self.get(of_shard, LeaseWord::Draining);
        if self.get(state, LeaseWord::Draining) != draining {
            self.set_draining(state, draining != 0);
        }
    }

    /// Takes over what another record says about an outage.
    pub(crate) fn copy_outage(&self, state: &mut (impl StateMut + ?Sized), outage: &(impl State + ?Sized)) {
        for word in [
            LeaseWord::OutSince,
            LeaseWord::Problem,
            LeaseWord::PolicyUntil,
            LeaseWord::RetryAt,
        ] {
            self.put(state, word, self.get(outage, word));
        }
    }

    /// Puts an outage into force that is in the record of the shard. Nothing is asked until the shard asks again. Returns
    /// false if the record has none, or if it is time to ask again.
    pub(crate) fn follow_outage(
        &self,
        state: &mut (impl StateMut + ?Sized),
        of_shard: &(impl State + ?Sized),
        now: Now,
    ) -> bool {
        let retry_at = self.get(of_shard, LeaseWord::RetryAt);
        let is_out = self.get(of_shard, LeaseWord::OutSince) != 0;
        if !is_out || retry_at <= now.monotonic || self.get(state, LeaseWord::Asked) != 0 {
            return false;
        }
        self.begin_outage(state, now, self.get(of_shard, LeaseWord::Problem));
        self.put(state, LeaseWord::RetryAt, retry_at);
        true
    }

    /// Notes in the record of a shard how the store fares, and counts the outcome.
    pub(crate) fn note_outcome(&self, state: &mut (impl StateMut + ?Sized), now: Now, outcome: LeaseOutcome) {
        match outcome {
            LeaseOutcome::Asked => self.add(state, LeaseWord::Requests, 1),
            LeaseOutcome::Answered(answer) => {
                match answer.quarantine {
                    Some(quarantine) => self.begin_outage(state, now, quarantine.code),
                    None => self.end_outage(state, now, true),
                }
                self.put(state, LeaseWord::RetryAt, 0);
                self.put(state, LeaseWord::AnsweredAt, now.monotonic);
                self.add(state, LeaseWord::Grants, u64::from(answer.granted > 0));
            }
            LeaseOutcome::Failed(problem, retry_at) => {
                self.add(state, LeaseWord::Failures, 1);
                if problem.is_outage {
                    self.begin_outage(state, now, problem.code);
                    self.put(state, LeaseWord::RetryAt, retry_at);
                } else {
                    self.put(state, LeaseWord::Problem, problem.code);
                }
            }
        }
    }

    /// Whether the store is out, as far as the record says.
    pub(crate) fn is_known_out(&self, state: &(impl State + ?Sized)) -> bool {
        self.get(state, LeaseWord::OutSince) != 0
    }

    /// Notes that the row is not on the list of rows to ask for.
    pub(crate) fn leave_list(&self, state: &mut (impl StateMut + ?Sized)) {
        self.put(state, LeaseWord::LowWater, NOT_LISTED);
        self.put(state, LeaseWord::Alerted, 0);
        // When it is used again, the store may be back.
        for word in [LeaseWord::OutSince, LeaseWord::PolicyUntil, LeaseWord::Problem] {
            self.put(state, word, 0);
        }
    }

    /// The number of the next request. For a key, it is above any that this host has ever used for that key, even one that
    /// it has forgotten.
    pub(super) fn next_sequence(&self, state: &(impl State + ?Sized), now: Now) -> u64 {
        let next = self.get(state, LeaseWord::Sequence).saturating_add(1);
        if self.is_by_key() {
            next.max(now.monotonic >> SEQUENCE_SHIFT)
        } else {
            next
        }
    }

    /// How long what keys have to report and to ask for is gathered, in nanoseconds.
    pub(crate) fn reports_gathered_for(&self) -> u64 {
        let gathered_for = (self.length() / GATHERED_PART).min(LONGEST_GATHERING);
        if self.is_held() {
            // Other hosts may wait for places that were released, and those that are renewed too late are lost.
            (gathered_for / 4).max(1)
        } else {
            gathered_for.max(SHORTEST_GATHERING)
        }
    }

    /// Whether somebody waits for a request for a key, or soon will.
    pub(crate) fn is_key_in_hurry(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        let get = |word| self.get(state, word);
        let is_nearly_spent = get(LeaseWord::Alerted) != 0 && self.is_valid(state, now);
        get(LeaseWord::Unmet) != 0
            || get(LeaseWord::Draining) != 0
            || is_nearly_spent
            || self.has_place_to_return(state, now)
    }

    /// When the next request for a key is due, if none is unanswered and the host is not draining. `None` if there is
    /// nothing to report or to ask for.
    pub(super) fn due_of_key_at(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        let get = |word| self.get(state, word);
        let retry_at = get(LeaseWord::RetryAt);
        let is_leased = get(LeaseWord::ValidUntil) > now.monotonic;
        let has_report = !is_leased && self.is_unreported(state);
        let reported_at = has_report.then(|| self.paced(state, false).max(retry_at));
        if get(LeaseWord::Unmet) != 0 {
            let wanted_at = self.paced(state, true).max(retry_at).max(get(LeaseWord::FreeAt));
            // The report of what was spent does not wait until the store has something again.
            return Some(reported_at.map_or(wanted_at, |reported_at| reported_at.min(wanted_at)));
        }
        let is_alerted = get(LeaseWord::Alerted) != 0 && get(LeaseWord::FreeAt) <= now.monotonic;
        if is_leased && is_alerted {
            return Some(self.paced(state, true).max(retry_at));
        }
        if reported_at.is_some() {
            return reported_at;
        }
        let due = self.renewed_without_want(state, now)?;
        Some(due.max(self.paced(state, false)).max(retry_at))
    }

    /// The request was answered: what it reported need not be reported again, and the rest counts from here on.
    pub(super) fn count_from_answer(&self, state: &mut (impl StateMut + ?Sized)) {
        for (word, asked) in [
            (LeaseWord::Spent, LeaseWord::AskedSpent),
            (LeaseWord::Allowance, LeaseWord::AskedSpent),
            (LeaseWord::SpentAtGrant, LeaseWord::AskedSpent),
            (LeaseWord::Refunded, LeaseWord::AskedRefunded),
            (LeaseWord::Ungranted, LeaseWord::AskedUngranted),
        ] {
            let left = self.get(state, word).saturating_sub(self.get(state, asked));
            self.put(state, word, left);
        }
        for word in [
            LeaseWord::AskedSpent,
            LeaseWord::AskedRefunded,
            LeaseWord::AskedUngranted,
            LeaseWord::Began,
        ] {
            self.put(state, word, 0);
        }
    }
}
