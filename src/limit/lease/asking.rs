//! When a host asks the store, and for how much.

use super::record::LeaseWord;
use super::{Leased, Units};
use crate::limit::{Now, State, StateMut};
use crate::units::saturate;

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
    /// By key: the number of the first request since the store last answered one.
    pub(crate) began: u64,
}

/// The first request asks for one part in this many of the largest target, since nothing is known about the use yet.
const FIRST_PART: u64 = 16;

/// Use is measured over at least one part in this many of a lease: a momentary burst is not a rate.
const MEASURED_PART: u64 = 32;

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
        if self.get(state, LeaseWord::Draining) != 0 {
            if self.is_held() && self.left(state) == 0 {
                // Places in use are kept.
                return is_leased.then(|| self.refreshed_at(state).max(retry_at));
            }
            return (is_leased || self.is_unreported(state)).then_some(retry_at);
        }
        if self.is_by_key() && !self.is_held() {
            return self.due_of_key_at(state, now);
        }
        // What the host has granted itself is not renewed. The store is asked until it grants something.
        let is_first = self.get(state, LeaseWord::Sequence) == 0;
        if !self.is_by_key() && (is_first || self.get(state, LeaseWord::OutSince) != 0) {
            return Some(retry_at);
        }
        // Use of a key that has no lease is no reason to ask, unless it was refused.
        let is_alerted = self.get(state, LeaseWord::Alerted) != 0 && (is_leased || !self.is_by_key());
        let is_wanted = is_alerted || self.get(state, LeaseWord::Unmet) != 0;
        // Places that are held but no longer leased have to be leased again.
        let places = if is_leased {
            self.get(state, LeaseWord::Allowance)
        } else {
            0
        };
        if is_wanted || self.in_use(state) > places {
            return Some(self.paced(state, true).max(retry_at));
        }
        if self.has_place_to_return(state, now) {
            // That this host got less than it wanted does not keep it from giving something back.
            let is_answered = self.get(state, LeaseWord::Problem) == 0;
            let not_before = if is_answered { 0 } else { retry_at };
            return Some(self.paced(state, true).max(not_before));
        }
        if is_leased && self.is_held() && places > self.get(state, LeaseWord::Ceiling) {
            // Others wait for places, some of which may be released without notice, for example by a process that died.
            let looked_at = self.get(state, LeaseWord::AnsweredAt).saturating_add(self.pace());
            return Some(looked_at.max(self.paced(state, false)).max(retry_at));
        }
        let due = self.renewed_without_want(state, now)?;
        Some(due.max(self.paced(state, false)).max(retry_at))
    }

    /// When a host that has what it wants at present asks again.
    pub(super) fn renewed_without_want(&self, state: &(impl State + ?Sized), now: Now) -> Option<u64> {
        let is_used = self.get(state, LeaseWord::Spent) != self.get(state, LeaseWord::AskedSpent)
            || self.in_use(state) > 0;
        let floor = self.floor(state, now);
        let valid_until = self.get(state, LeaseWord::ValidUntil);
        if valid_until > now.monotonic {
            let left = self.left(state);
            if is_used || left > floor {
                // To report what was spent, and to give back what is kept in vain.
                return Some(self.refreshed_at(state));
            }
            if left == 0 && floor > 0 {
                // The window is used up; the next one is not.
                return Some(valid_until.saturating_add(self.jitter(state, self.pace())));
            }
            return (left > 0).then(|| self.renewed_at(state));
        }
        // No lease is left for what may follow. If a window ended it, it ended the leases of all hosts.
        if is_used || floor > 0 {
            return Some(valid_until.saturating_add(self.jitter(state, self.pace())));
        }
        let refunded = self.get(state, LeaseWord::Refunded) != self.get(state, LeaseWord::AskedRefunded);
        refunded.then(|| self.get(state, LeaseWord::AskedAt).saturating_add(self.length()))
    }

    /// Whether the unanswered request claims units that the host no longer holds, because their lease is over. The
    /// store cannot know how much of them was spent, so it would grant nothing; a new request corrects the claim.
    fn says_what_is_over(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.get(state, LeaseWord::AskedHeld) != 0
            && (!self.is_valid(state, now) || self.get(state, LeaseWord::SelfGranted) != 0)
    }

    /// Whether something was spent or refunded that no request has reported yet.
    pub(crate) fn is_unreported(&self, state: &(impl State + ?Sized)) -> bool {
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
            began: self.get(state, LeaseWord::Began),
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

    /// Whether a place was released that other hosts wait for.
    pub(crate) fn has_place_to_return(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.is_held()
            && self.is_valid(state, now)
            && self.get(state, LeaseWord::Allowance) > self.kept_at_most(state)
    }

    fn keep_request(&self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let spent = self.get(state, LeaseWord::Spent);
        let unmet = self.get(state, LeaseWord::Unmet);
        if spent != self.get(state, LeaseWord::AskedSpent) || unmet > 0 || self.in_use(state) > 0 {
            self.note_use(state, now);
            self.note_cost(state, unmet);
        }
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
        let sequence = self.next_sequence(state, now);
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
        if self.is_by_key() && self.get(state, LeaseWord::Began) == 0 {
            self.put(state, LeaseWord::Began, sequence);
        }
        self.pace_on(state, now);
        self.add(state, LeaseWord::Requests, 1);
    }

    /// How much the host would like to have: what it uses while a lease lasts, and a margin; twice as much each time
    /// it ran short; at least what a single request could not get; and its floor.
    fn desired(&self, state: &mut (impl StateMut + ?Sized), now: Now) -> u64 {
        let is_draining = self.get(state, LeaseWord::Draining) != 0;
        let unmet = self.get(state, LeaseWord::Unmet);
        let floor = self.floor(state, now);
        if self.is_held() {
            let in_use = self.in_use(state);
            if is_draining {
                return in_use;
            }
            let spare = match (unmet, in_use) {
                (0, 0) => floor,
                _ => unmet.max(in_use / 8 + 1).max(floor),
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
            .max(self.length() / MEASURED_PART)
            .max(1);
        let of_a_lease = u128::from(used) * u128::from(self.length_with_margin()) / u128::from(measured);
        let of_a_lease = saturate(of_a_lease);
        let first = self.max_target() / FIRST_PART;
        let target = if self.get(state, LeaseWord::Sequence) == 0 && !self.is_by_key() {
            first.max(1)
        } else if unmet > 0 {
            of_a_lease.max(target.saturating_mul(2)).max(first).max(1)
        } else if used > 0 {
            of_a_lease.max(target / 4 * 3)
        } else if self.get(state, LeaseWord::Available) == 0 {
            // Others want what is idle here.
            0
        } else {
            // Not straight to zero: use that pauses for a moment is not over.
            target / 2
        };
        // The burst is for use that exceeds the rate, and the host can have half of what is left of it for all hosts.
        let most = self.max_target().max(self.get(state, LeaseWord::Available) / 2);
        let target = target.min(most);
        self.put(state, LeaseWord::Target, target);
        let target = self.until_window_ends(state, now, target);
        // For a budget, one unit is enough to admit. A key that is seldom used needs no lease.
        let least = floor.max(unmet).max(u64::from(used > 0 && !self.is_by_key()));
        target.max(least).min(self.capacity)
    }

    /// How much of `target`, which is what the host uses in one lease and a margin, it uses before the end of the window
    /// that cuts its present lease short. The rest would be left over, while others can use it.
    fn until_window_ends(&self, state: &(impl State + ?Sized), now: Now, target: u64) -> u64 {
        if !self.is_in_windows() || !self.is_valid(state, now) || !self.is_cut(state) {
            return target;
        }
        let rest = self
            .get(state, LeaseWord::ValidUntil)
            .saturating_sub(now.monotonic);
        let part = u128::from(target) * u128::from(rest) / u128::from(self.length_with_margin().max(1));
        saturate(part).max(1).min(target)
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
}
