//! The sliding window: an exact log of what was admitted and when, in a ring of bounded size.

use crate::limit::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, Now, RuleOperations, State, StateMut,
};

/// At most `capacity` units in any window, wherever it starts.
///
/// An entry made at `t` counts while `now < t + window`: the bound holds for every half-open span `[a, a + window)`.
///
/// State: a word that packs the ring's head (low half) and length (high half); a word with the running total before
/// the oldest entry; then the ring of entries, two words each: the time, and the running total up to and including
/// the entry. With totals instead of costs, the sum of any run of entries is one subtraction, and expiry and waiting
/// times are binary searches. Totals wrap; the sum of the live entries never exceeds 64 bits, so their differences
/// are exact.
///
/// **Merging.** While fewer than `entries` entries are live, each charge gets its own, and the log is exact. After
/// that, a charge in the same cell of `ceil(window / entries)` nanoseconds as the newest entry joins it, and the
/// joint entry takes the later time. Units then expire late by less than one cell: the limit may refuse for that much
/// longer, but never admits too much.
///
/// **The ring of `2 * entries` never overflows.** Call an entry crowded if it was made when `entries` or more were
/// live. It opened a cell of its own, later than that of the newest entry at the time, and merging never leaves a
/// cell. The entries alive at an instant lie within `window` consecutive nanoseconds, which touch `entries + 1` cells
/// at most. When the newest of them that is not crowded was made, at most `entries` were live, itself included; those
/// made since are crowded and lie in the other cells, at most `entries`. If all are crowded, there are at most
/// `entries + 1`. A damaged ring may be full anyway, and so may one from before the window changed: then the
/// newest entry takes the charge, and what it held counts for longer.
///
/// **Refunds** are taken out of the first entry at or after the charge: its own, or one that expires no later. Either
/// every total from there on becomes smaller, or every total before it larger, whichever are fewer; if that is more
/// words than a refund may store, nothing is given back. However charges were merged, everything charged from any
/// instant on still counts for at least as long as it must. The newest entry always holds something, so it tells when
/// everything is replenished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindow {
    capacity: u64,
    window: u64,
    entries: u32,
    cell: u64,
    /// How many words a refund may store.
    refund_words: u32,
}

/// The live part of the log at an instant, read from the state and made safe.
struct Live {
    head: u32,
    len: u32,
    /// The running total before the oldest live entry.
    before: u64,
    /// The running total of everything.
    total: u64,
}

impl Live {
    fn sum(&self) -> u64 {
        self.total.wrapping_sub(self.before)
    }
}

impl SlidingWindow {
    const ENDS: usize = 0;
    const BEFORE: usize = 1;
    const RING: usize = 2;

    /// When the window shrinks, this many entries stay separate: as many as a bounded number of stores can move.
    const MAX_MOVED: u32 = 29;

    /// 16.7 million entries are half a gigabyte of state.
    const MAX_ENTRIES: u32 = 1 << 24;

    /// `window` is in nanoseconds; at least `entries` charges are kept apart.
    pub(crate) fn new(capacity: u64, window: u64, entries: u32) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        InvalidLimit::unless_positive(window, "window")?;
        InvalidLimit::unless_positive(entries, "number of entries")?;
        if entries > Self::MAX_ENTRIES {
            return Err(InvalidLimit::AboveMax {
                what: "number of entries",
                given: u64::from(entries),
                max: u64::from(Self::MAX_ENTRIES),
            });
        }
        Ok(Self {
            capacity,
            window,
            entries,
            cell: window.div_ceil(u64::from(entries)),
            refund_words: 0,
        })
    }

    /// The same rule with refunds that store at most `words` words; a refund that needs more gives nothing back. What the
    /// journal has room for is divided among the limits of a set by `share_refund_words` in `src/engine/terms/plan.rs`.
    pub(crate) fn refunding_within(self, words: u32) -> Self {
        Self {
            refund_words: words,
            ..self
        }
    }

    /// Reads the ends of the log, makes them safe, and skips what has expired.
    fn live(&self, state: &(impl State + ?Sized), now: Now) -> Live {
        let ends = state.load(Self::ENDS);
        let head = (ends as u32) % self.slots();
        let len = ((ends >> 32) as u32).min(self.slots());
        let before = state.load(Self::BEFORE);
        let Some(newest) = len.checked_sub(1) else {
            return Live {
                head,
                len: 0,
                before,
                total: before,
            };
        };
        let total = self.total_at(state, head, newest);
        let is_live = |index| now.monotonic.saturating_sub(self.time_at(state, head, index)) < self.window;
        // Often nothing or everything has expired: both cases need no search.
        let expired = if is_live(0) {
            return Live {
                head,
                len,
                before,
                total,
            };
        } else if is_live(newest) {
            first_where(len, is_live)
        } else {
            len
        };
        let before = match expired.checked_sub(1) {
            Some(last_expired) => self.total_at(state, head, last_expired),
            None => before,
        };
        Live {
            head: self.slot(head, expired),
            len: len - expired,
            before,
            total,
        }
    }

    /// Nanoseconds until an entry stops counting; positive.
    fn expires_in(&self, state: &(impl State + ?Sized), head: u32, index: u32, now: Now) -> u64 {
        let time = self.time_at(state, head, index);
        let until = if time <= now.monotonic {
            self.window.saturating_sub(now.monotonic - time)
        } else {
            self.window.saturating_add(time - now.monotonic)
        };
        // Live entries expire later than now, except in a damaged log.
        until.max(1)
    }

    fn slots(&self) -> u32 {
        2 * self.entries
    }

    /// The slot of the entry `index` places after the head. `head < slots` and `index <= slots`, so the sum fits.
    fn slot(&self, head: u32, index: u32) -> u32 {
        (head + index) % self.slots()
    }

    fn entry(&self, head: u32, index: u32) -> usize {
        Self::RING + 2 * self.slot(head, index) as usize
    }

    fn time_at(&self, state: &(impl State + ?Sized), head: u32, index: u32) -> u64 {
        state.load(self.entry(head, index))
    }

    fn total_at(&self, state: &(impl State + ?Sized), head: u32, index: u32) -> u64 {
        state.load(self.entry(head, index) + 1)
    }
}

impl RuleOperations for SlidingWindow {
    fn state_words(&self) -> usize {
        Self::RING + 2 * self.slots() as usize
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        // The largest sum on top of which the cost still fits.
        let Some(admitting) = self.capacity.checked_sub(cost) else {
            return Assessment::Refused { retry_after: None };
        };
        let live = self.live(state, now);
        let Some(excess @ 1..) = live.sum().checked_sub(admitting) else {
            return Assessment::Admissible;
        };
        // The oldest entries that together free the excess: the last of them decides.
        let too_few = first_where(live.len, |index| {
            self.total_at(state, live.head, index).wrapping_sub(live.before) >= excess
        });
        let decisive = too_few.min(live.len.saturating_sub(1));
        Assessment::Refused {
            retry_after: Some(self.expires_in(state, live.head, decisive, now)),
        }
    }

    /// At most four stores. The sum of the live entries saturates.
    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        let live = self.live(state, now);
        // Differences of wrapping totals are exact only while the sum fits.
        let added = cost.min(u64::MAX - live.sum());
        if added == 0 {
            return;
        }
        let total = live.total.wrapping_add(added);
        let newest = live.len.checked_sub(1);
        let joins = newest.is_some_and(|newest| {
            live.len == self.slots()
                || (live.len >= self.entries
                    && self.time_at(state, live.head, newest) / self.cell == now.monotonic / self.cell)
        });
        let (index, len) = match newest {
            Some(newest) if joins => (newest, live.len),
            _ => (live.len, live.len + 1),
        };
        // Never earlier than the previous entry, so that the log stays in order.
        let time = newest
            .map_or(0, |newest| self.time_at(state, live.head, newest))
            .max(now.monotonic);
        let entry = self.entry(live.head, index);
        state.store(entry, time);
        state.store(entry + 1, total);
        state.store(Self::BEFORE, live.before);
        state.store(Self::ENDS, ends(live.head, len));
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        let live = self.live(state, now);
        let reset_after = live
            .len
            .checked_sub(1)
            .map_or(0, |newest| self.expires_in(state, live.head, newest, now));
        Mark {
            first: live.sum(),
            second: reset_after,
        }
    }

    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        self.live(state, now).len == 0
    }

    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        // Once expired, the charge still counts at most as part of a later entry.
        if now.monotonic.saturating_sub(charge.instant) >= self.window {
            return 0;
        }
        let live = self.live(state, now);
        let time = |index| self.time_at(state, live.head, index);
        let first = first_where(live.len, |index| time(index) >= charge.instant);
        if first == live.len {
            return 0;
        }
        let base = match first.checked_sub(1) {
            Some(before) => self.total_at(state, live.head, before),
            None => live.before,
        };
        // What the entries from `first` up to `index` hold together, counted from `base`.
        let held_to = |index: u32| self.total_at(state, live.head, index).wrapping_sub(base);
        let instant = time(first);
        // Entries of one instant expire together, so it does not matter which of them is the charge's own.
        let last = first_where(live.len, |index| index >= first && time(index) > instant).max(first + 1) - 1;
        let units = unused.min(charge.cost).min(held_to(last)).min(live.sum());
        if units == 0 {
            return 0;
        }
        let rest = live.sum() - units;
        let head_sum = base.wrapping_sub(live.before);
        let sum_to = |index: u32| {
            if index < first {
                self.total_at(state, live.head, index).wrapping_sub(live.before)
            } else {
                head_sum.wrapping_add(held_to(index).saturating_sub(units))
            }
        };
        // Up to the last entry that holds anything.
        let len = match rest {
            0 => 0,
            _ => live
                .len
                .min(first_where(live.len, |index| sum_to(index) >= rest) + 1),
        };
        // Entries of the first instant that are now empty. If the totals before them move, theirs do too.
        let emptied = first_where(len.saturating_sub(first), |index| held_to(first + index) >= units);
        let (behind, ahead) = (len.saturating_sub(first), (first + emptied).min(len));
        // Two more for both ends of the log.
        if behind.min(ahead).saturating_add(2) > self.refund_words {
            return 0;
        }
        let (range, before) = if behind <= ahead {
            (first..len, live.before)
        } else {
            (0..ahead, live.before.wrapping_add(units))
        };
        for index in range {
            let entry = self.entry(live.head, index) + 1;
            let total = state.load(entry);
            let held = total.wrapping_sub(base);
            let moved = if behind <= ahead {
                base.wrapping_add(held.saturating_sub(units))
            } else if index < first {
                total.wrapping_add(units)
            } else {
                base.wrapping_add(units)
            };
            state.store(entry, moved);
        }
        state.store(Self::BEFORE, before);
        state.store(Self::ENDS, ends(live.head, len));
        units
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        state.store(Self::ENDS, 0);
    }

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(Self { capacity, ..*self })
    }

    /// A lower bound, in nanoseconds, on when all of `amount` units can have been taken, in whatever portions: no
    /// span of a window's length has room for more than the capacity.
    fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        let first = match self.assess(state, now, amount.min(self.capacity)) {
            Assessment::Admissible => 0,
            Assessment::Refused { retry_after } => retry_after.unwrap_or(0),
        };
        let full_windows = amount.div_ceil(self.capacity).saturating_sub(1);
        first.max(self.window.saturating_mul(full_windows))
    }

    /// The rings must be of the same size.
    fn can_migrate(&self, old: &Self) -> bool {
        self.entries == old.entries
    }

    /// What counts now keeps counting until both windows have passed since it was charged. A longer window keeps the
    /// entries. For a shorter one they move into the future by the difference, and whatever is charged before the
    /// newest of them is reached counts as long as it does. If there are many entries, neighbours are joined and
    /// expire with the last of them.
    ///
    /// When an entry in the future was charged is no longer known, except that it was no later than now. So if the
    /// window grows again, such an entry moves back, by at most the difference and not beyond now. Otherwise each
    /// change back and forth would move its end by the difference. Changes that follow one another faster than the
    /// longer window still move it along, to at most one longer window after the latest change.
    ///
    /// At most 60 stores.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self.window == old.window {
            return;
        }
        let live = old.live(state, now);
        let kept = if self.window > old.window {
            first_where(live.len, |index| {
                self.time_at(state, live.head, index) > now.monotonic
            })
        } else {
            0
        };
        let moved = live.len - kept;
        let joined = moved.div_ceil(Self::MAX_MOVED).max(1);
        let len = kept + moved.div_ceil(joined);
        for index in kept..len {
            // At or after the entry being written, so none is lost before it is read.
            let last = (kept + (index - kept) * joined + joined - 1).min(live.len - 1);
            let time = self.time_at(state, live.head, last);
            let time = match self.window.checked_sub(old.window) {
                Some(longer) => time.saturating_sub(longer).max(now.monotonic),
                None => time.saturating_add(old.window - self.window),
            };
            let total = self.total_at(state, live.head, last);
            let entry = self.entry(live.head, index);
            state.store(entry, time);
            state.store(entry + 1, total);
        }
        // Drop what has expired: a longer window would count it again.
        state.store(Self::BEFORE, live.before);
        state.store(Self::ENDS, ends(live.head, len));
    }
}

/// Packs where the log begins and how long it is.
fn ends(head: u32, len: u32) -> u64 {
    u64::from(head) | (u64::from(len) << 32)
}

/// The first index below `len` at which a condition holds that stays true once it is; `len` if it never does. At most
/// 32 steps, whatever the condition answers.
fn first_where(len: u32, condition: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if condition(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
