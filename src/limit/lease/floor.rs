//! What a host keeps leased while it does not use it, so that its next request finds something.

use super::Leased;
use super::record::LeaseWord;
use crate::limit::{Now, State, StateMut};
use crate::units::NANOS_PER_SECOND;

/// For how long after its last use a host keeps a floor, in nanoseconds.
const KEPT_FOR: u64 = 60 * NANOS_PER_SECOND;

/// A floor is this many of the largest recent cost: a few requests may come at once before the host can ask.
const COSTS: u64 = 4;

/// It is at most one part in this many of what is available to all hosts.
const PART: u64 = 16;

/// If that is less than a single cost, the floor is that cost, provided that one part in this many of everything is
/// available.
const HALF: u64 = 2;

impl Leased {
    /// How much the host keeps although it does not use it: a few of its largest recent costs while units are
    /// plentiful, nothing when they are not, and nothing a minute after its last use. Nothing by key, because a key's first
    /// units are [not leased](super::key_lease); but a place that was just released is kept for half a lease, since
    /// places are always leased.
    pub(super) fn floor(&self, state: &(impl State + ?Sized), now: Now) -> u64 {
        let used_at = self.get(state, LeaseWord::UsedAt);
        let kept_for = match (self.is_by_key(), self.is_held()) {
            (false, _) => KEPT_FOR,
            (true, false) => 0,
            (true, true) => self.length() / HALF,
        };
        if used_at == 0 || now.monotonic.saturating_sub(used_at) >= kept_for {
            return 0;
        }
        let before = self.get(state, LeaseWord::LargestBefore);
        let cost = self.get(state, LeaseWord::Largest).max(before).max(1);
        let available = self.get(state, LeaseWord::Available);
        let several = cost.saturating_mul(COSTS).min(available / PART);
        let several = if self.is_held() {
            // Places come back only when they are released, so idle hosts leave half of them to those that use more.
            several.min(self.get(state, LeaseWord::Share) / HALF)
        } else {
            several
        };
        if several >= cost {
            several
        } else if available >= cost.max(self.capacity.div_ceil(HALF)) {
            cost
        } else {
            0
        }
    }

    /// For how many nanoseconds a request that is refused while [a lease is pending](super::Shortage::Pending) waits for
    /// the store's answer.
    pub(crate) fn cold_wait(&self) -> u64 {
        u64::from(self.cold_micros) * 1000
    }

    /// Notes a cost, if it is the largest of this minute. Nearly always it is not, and nothing is stored.
    #[inline]
    pub(super) fn note_cost(&self, state: &mut (impl StateMut + ?Sized), cost: u64) {
        if cost > self.get(state, LeaseWord::Largest) {
            self.put(state, LeaseWord::Largest, cost);
        }
    }

    /// Notes that the limit is in use. With the first use in a new minute, the largest cost becomes that of the minute
    /// before.
    pub(super) fn note_use(&self, state: &mut (impl StateMut + ?Sized), now: Now) {
        let used_at = self.get(state, LeaseWord::UsedAt);
        if now.monotonic / KEPT_FOR != used_at / KEPT_FOR {
            self.put(
                state,
                LeaseWord::LargestBefore,
                self.get(state, LeaseWord::Largest),
            );
            self.put(state, LeaseWord::Largest, 0);
        }
        self.put(state, LeaseWord::UsedAt, now.monotonic);
    }
}
