//! Requests that find too little leased: why, and what is noted about them for the process that asks the store next.

use super::record::LeaseWord;
use super::{IS_LOW, Leased, SHORTAGE_SHIFT, WANTS_LEASE};
use crate::limit::{Mark, Now, State, StateMut};

/// Why too little is leased, as far as the host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The store had no more for this host when it answered last, or the host gives everything back.
    Exhausted = 0,
    /// The store has not been asked yet, or not for that much, and nothing is wrong with it as far as is known.
    Pending = 1,
    /// The store is out, or grants nothing for a while.
    StoreOut = 2,
}

impl Leased {
    /// Why too little is leased now.
    pub(super) fn shortage(&self, state: &(impl State + ?Sized), now: Now) -> Shortage {
        let get = |word| self.get(state, word);
        if get(LeaseWord::Draining) != 0 {
            return Shortage::Exhausted;
        }
        // A request with a problem that is not an outage is repeated, unless the host goes on as another.
        let grants_nothing = get(LeaseWord::Problem) != 0 && get(LeaseWord::Asked) != 0;
        let is_out = get(LeaseWord::OutSince) != 0 && get(LeaseWord::PolicyUntil) == 0;
        if is_out || grants_nothing {
            return Shortage::StoreOut;
        }
        // A shortage of a lease ago, or in another window, says nothing about now.
        let answered_ago = now.monotonic.saturating_sub(get(LeaseWord::AnsweredAt));
        let is_exhausted = if self.is_by_key() && !self.is_held() {
            get(LeaseWord::FreeAt) > now.monotonic
        } else {
            let is_another_window = self.is_in_windows() && !self.is_valid(state, now);
            get(LeaseWord::Short) != 0 && answered_ago < self.length() && !is_another_window
        };
        if is_exhausted {
            Shortage::Exhausted
        } else {
            Shortage::Pending
        }
    }

    /// Why too little was leased, if that is why a request was refused that left the limit at `mark`.
    pub(crate) fn shortage_of(&self, mark: Mark) -> Option<Shortage> {
        let is_of_lease = !self.is_held() || mark.second == WANTS_LEASE;
        is_of_lease.then_some(match (mark.first & !IS_LOW) >> SHORTAGE_SHIFT {
            1 => Shortage::Pending,
            2 => Shortage::StoreOut,
            _ => Shortage::Exhausted,
        })
    }

    /// Notes that `cost` units were asked for and missing, for the process that asks the store next. Returns whether to
    /// wake the process on duty, which is done once between two requests to the store. The note is only a hint and need
    /// not be undone.
    pub(crate) fn note_unmet(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) -> bool {
        if self.free_in(state, now, cost).is_some() {
            // Then no lease is needed.
            return false;
        }
        let unmet = self.get(state, LeaseWord::Unmet);
        if cost > unmet || unmet == 0 {
            self.put(state, LeaseWord::Unmet, cost.max(1));
        }
        // A key that only had something to report was no reason to hurry.
        let is_urgent = self.is_by_key() && unmet == 0;
        self.alert(state) || is_urgent
    }

    /// Notes that the process on duty is to be woken. Returns false if that was noted already.
    pub(crate) fn alert(&self, state: &mut (impl StateMut + ?Sized)) -> bool {
        if self.get(state, LeaseWord::Alerted) != 0 {
            return false;
        }
        self.put(state, LeaseWord::Alerted, 1);
        true
    }
}
