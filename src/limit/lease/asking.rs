//! When a host asks the store, and for how much.

use super::record::LeaseWord;
use super::{Leased, Units};
use crate::limit::{Now, State, StateMut};
use crate::units::{NANOS_PER_SECOND, saturate};

/// A host's request to the store. It stays the same until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    /// The identity that the host asks under; zero if it asks under the number of the segment.
    pub(crate) identity: u64,
    pub(crate) sequence: u64,
    pub(crate) spent: u64,
    pub(crate) refunded: u64,
    pub(crate) ungranted: u64,
    pub(crate) held: u64,
    pub(crate) wanted: u64,
    /// The greatest grant number the host knows of.
    pub(crate) grant_number: u64,
}

/// A lease is renewed when one part in this many of it is left.
const RENEWED_BEFORE: u64 = 4;

/// After the store had less than was wanted, the host pauses for one part in this many of a lease.
const PAUSE: u64 = 8;

/// The first request asks for one part in this many of the largest target, since nothing is known of the use yet.
const FIRST_PART: u64 = 16;

/// Use is measured over at least this many nanoseconds: a momentary burst is not a rate.
const MIN_MEASURED: u64 = 10_000_000;

impl Leased {
    /// If the lease is over, records that.
    fn expire(&self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self.get(state, LeaseWord::ValidUntil) == 0 || self.is_valid(state, now) {
            return;
        }
        let units = self.left(state);
        let is_granted = self.get(state, LeaseWord::SelfGranted) == 0;
        let was_used = self.get(state, LeaseWord::Spent) != self.get(state, LeaseWord::SpentAtGrant)
            || self.in_use(state) > 0;
        let unused = match (is_granted && units > 0, was_used) {
            (true, false) => self.get(state, LeaseWord::Unused).saturating_add(1),
            _ => 0,
        };
        self.put(state, LeaseWord::Unused, unused);
        if is_granted {
            self.add(state, LeaseWord::ExpiredUnits, units);
        }
        self.end(state);
    }

    /// The request to send now: the unanswered one, or a new one if one is due. It is kept in the state before it is
    /// sent.
    pub(crate) fn ask(&self, state: &mut (impl StateMut + ?Sized), now: Now) -> Option<Ask> {
        self.begin_with_key(state);
        self.expire(state, now);
        if self.due_at(state, now).is_none_or(|due| due > now.monotonic) {
            return None;
        }
        if self.get(state, LeaseWord::Asked) == 0 || self.says_what_is_over(state, now) {
            self.keep_request(state, now);
        }
        Some(self.kept_request(state))
    }

    /// When the next request is due, on the segment clock, if nothing is spent until then; `None` if none is.
    pub(crate) fn due_at(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        let retry_at = self.get(state, LeaseWord::RetryAt);
        if self.get(state, LeaseWord::Asked) != 0 {
            return Some(retry_at);
        }
        let valid_until = self.get(state, LeaseWord::ValidUntil);
        let is_leased = valid_until > now.monotonic;
        let renewed_at = valid_until
            .saturating_sub(self.length() / RENEWED_BEFORE)
            .max(retry_at);
        if self.get(state, LeaseWord::Draining) != 0 {
            if self.is_held() && self.left(state) == 0 {
                return is_leased.then_some(renewed_at);
            }
            return (is_leased || self.is_unreported(state)).then_some(retry_at);
        }
        // What the host has granted itself is not renewed, and until the store grants something, it is asked.
        let is_first = self.get(state, LeaseWord::Sequence) == 0;
        if is_first || self.get(state, LeaseWord::OutSince) != 0 {
            return Some(retry_at);
        }
        let is_wanted = self.get(state, LeaseWord::Alerted) != 0 || self.get(state, LeaseWord::Unmet) != 0;
        // Places that are held but no longer leased have to be leased again.
        let places = if is_leased {
            self.get(state, LeaseWord::Allowance)
        } else {
            0
        };
        let is_held_without = self.is_held() && self.in_use(state) > places;
        if is_wanted || is_held_without {
            return Some(retry_at);
        }
        if is_leased && self.is_held() && places > self.get(state, LeaseWord::Ceiling) {
            // Others wait for places that are released meanwhile.
            let looked_at = self
                .get(state, LeaseWord::AnsweredAt)
                .saturating_add(self.pause());
            return Some(looked_at.max(retry_at).min(renewed_at));
        }
        if is_leased {
            return Some(renewed_at);
        }
        // Units were spent since the last request, and no lease is left for what may follow.
        if self.get(state, LeaseWord::Spent) != self.get(state, LeaseWord::AskedSpent) {
            return Some(retry_at);
        }
        let refunded = self.get(state, LeaseWord::Refunded) != self.get(state, LeaseWord::AskedRefunded);
        let reported_by = self.get(state, LeaseWord::AskedAt).saturating_add(self.length());
        refunded.then(|| reported_by.max(retry_at))
    }

    /// Whether the unanswered request claims units that the host no longer holds, because their lease is over. The
    /// store cannot know how much of them was spent, so it would grant nothing; a new request corrects the claim.
    fn says_what_is_over(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.get(state, LeaseWord::AskedHeld) != 0
            && (!self.is_valid(state, now) || self.get(state, LeaseWord::SelfGranted) != 0)
    }

    fn is_unreported(&self, state: &(impl State + ?Sized)) -> bool {
        self.get(state, LeaseWord::Spent) != self.get(state, LeaseWord::AskedSpent)
            || self.get(state, LeaseWord::Refunded) != self.get(state, LeaseWord::AskedRefunded)
    }

    fn kept_request(&self, state: &(impl State + ?Sized)) -> Ask {
        Ask {
            identity: self.get(state, LeaseWord::Identity),
            sequence: self.get(state, LeaseWord::Asked),
            spent: self.get(state, LeaseWord::AskedSpent),
            refunded: self.get(state, LeaseWord::AskedRefunded),
            ungranted: self.get(state, LeaseWord::AskedUngranted),
            held: self.get(state, LeaseWord::AskedHeld),
            wanted: self.get(state, LeaseWord::AskedWanted),
            grant_number: self.get(state, LeaseWord::GrantNumber),
        }
    }

    /// While other hosts wait for places, those above the ceiling go back as they are released.
    fn kept_at_most(&self, state: &(impl State + ?Sized)) -> u64 {
        if self.is_held() {
            self.get(state, LeaseWord::Ceiling).max(self.in_use(state))
        } else {
            u64::MAX
        }
    }

    fn keep_request(&self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let spent = self.get(state, LeaseWord::Spent);
        let desired = self.desired(state, now);
        // Units that the host has granted itself are not outstanding in the store.
        let is_granted = self.get(state, LeaseWord::SelfGranted) == 0 && self.is_valid(state, now);
        let leased = match self.units {
            Units::Held => self.get(state, LeaseWord::Allowance),
            _ => self.left(state),
        };
        let leased = leased.min(self.kept_at_most(state));
        let held = if is_granted { leased.min(desired) } else { 0 };
        if is_granted {
            // What is not kept is given back, so it cannot be spent from here on.
            let base = if self.is_held() { 0 } else { spent };
            self.put(state, LeaseWord::Allowance, base.saturating_add(held));
        }
        let sequence = self.get(state, LeaseWord::Sequence).saturating_add(1);
        for (word, value) in [
            (LeaseWord::Sequence, sequence),
            (LeaseWord::Asked, sequence),
            (LeaseWord::AskedSpent, spent),
            (LeaseWord::AskedRefunded, self.get(state, LeaseWord::Refunded)),
            (LeaseWord::AskedUngranted, self.get(state, LeaseWord::Ungranted)),
            (LeaseWord::AskedHeld, held),
            (LeaseWord::AskedWanted, desired - held),
            (LeaseWord::AskedAt, now.monotonic),
            (LeaseWord::LowWater, 0),
            (LeaseWord::Unmet, 0),
            (LeaseWord::Alerted, 0),
            (LeaseWord::RetryAt, 0),
        ] {
            self.put(state, word, value);
        }
        self.add(state, LeaseWord::Requests, 1);
    }

    /// How much the host would like to have: about one second's worth of its use, twice as much each time it ran
    /// short, and at least what a single request could not get.
    fn desired(&self, state: &mut (impl StateMut + ?Sized), now: Now) -> u64 {
        let is_draining = self.get(state, LeaseWord::Draining) != 0;
        let unmet = self.get(state, LeaseWord::Unmet);
        if self.is_held() {
            let in_use = self.in_use(state);
            if is_draining {
                return in_use;
            }
            let spare = match (unmet, in_use) {
                (0, 0) => 0,
                _ => unmet.max(in_use / 8 + 1),
            };
            return in_use.saturating_add(spare).min(self.capacity);
        }
        if is_draining {
            return 0;
        }
        let used = self
            .get(state, LeaseWord::Spent)
            .saturating_sub(self.get(state, LeaseWord::AskedSpent));
        let target = self.get(state, LeaseWord::Target);
        let measured = now
            .monotonic
            .saturating_sub(self.get(state, LeaseWord::AskedAt))
            .max(MIN_MEASURED);
        let per_second = saturate(u128::from(used) * u128::from(NANOS_PER_SECOND) / u128::from(measured));
        let is_first = self.get(state, LeaseWord::Sequence) == 0;
        let is_short = is_first || unmet > 0 || (used > 0 && self.left(state) == 0);
        let target = if is_short {
            per_second
                .max(target.saturating_mul(2))
                .max(self.max_target() / FIRST_PART)
                .max(1)
        } else if used > 0 {
            per_second.max(target / 4 * 3)
        } else {
            // Not straight to zero: the next request after a pause should find something.
            target / 2
        };
        let target = target.min(self.max_target());
        self.put(state, LeaseWord::Target, target);
        // For a budget, one unit is enough to admit.
        target.max(unmet).max(u64::from(used > 0)).min(self.capacity)
    }

    /// Starts or stops draining. While draining, the next request gives everything back, and nothing is asked for any
    /// more.
    pub(crate) fn set_draining(&self, state: &mut (impl StateMut + ?Sized), draining: bool) {
        self.put(state, LeaseWord::Draining, u64::from(draining));
        if draining {
            // The store counts it as outstanding until a request reports that nothing is held.
            let used = self.used(state);
            let allowance = self.get(state, LeaseWord::Allowance);
            self.put(state, LeaseWord::Allowance, used.min(allowance));
        }
    }

    /// How long the host pauses after the store had less than was wanted, in nanoseconds.
    pub(super) fn pause(&self) -> u64 {
        self.length() / PAUSE
    }
}
