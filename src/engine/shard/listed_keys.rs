//! Which keys of a shard the process that asks the store should look at, and when.
//!
//! A table may have a hundred thousand rows, and only a few want something. So each shard lists the rows that may want
//! something now, and those that will have something to say later, because they have something leased or unreported.
//! Rows of the first list that are in a hurry are asked for at once, all others every so often. When that is due is
//! recorded in the shard's own record of its first limit that hosts share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::set_engine::RuledShard;
use crate::limit::{LeaseState, LeaseWord, Now};
use crate::shm::layout::row::Row;
use crate::shm::layout::row_list::{RowBits, RowList};

/// The shortest time between two looks at the rows that want something, in nanoseconds: each costs the store a call.
const PACE: u64 = 10_000_000;

/// When to look at which rows of a shard. Hints, never journalled.
pub(in crate::engine) struct Looks<'a> {
    words: &'a [AtomicU64],
    /// How often what is not in a hurry is looked at, in nanoseconds.
    gathered_for: u64,
    /// How long before the multiples of that time this happens, in nanoseconds: each segment has instants of its own,
    /// so that the hosts of a fleet do not all ask at the same ones.
    ahead: u64,
}

impl Looks<'_> {
    fn get(&self, word: LeaseWord) -> u64 {
        self.words
            .get(word as usize)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    pub(in crate::engine) fn set(&self, word: LeaseWord, value: u64) {
        if let Some(word) = self.words.get(word as usize) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// When to look at the rows that want something, on the segment clock; `None` if there are none. `rows` is the list
    /// of them.
    fn at_wanting(&self, rows: RowBits<'_>) -> Option<u64> {
        let not_before = self.get(LeaseWord::PacedUntil);
        if self.get(LeaseWord::Unmet) != 0 {
            return Some(not_before);
        }
        match self.get(LeaseWord::Alerted) {
            // Whoever looked last did not reach the end of the list.
            0 => (!rows.is_empty()).then_some(not_before),
            alerted_at => Some(not_before.max(self.gathered_after(alerted_at))),
        }
    }

    /// The first instant after `instant` at which all shards look at what is not in a hurry. They do so together
    /// because a call of the store takes keys of one partition only, and the keys that one look finds are often each in
    /// a partition of their own.
    fn gathered_after(&self, instant: u64) -> u64 {
        let next = instant.saturating_add(self.ahead) / self.gathered_for + 1;
        next.saturating_mul(self.gathered_for) - self.ahead
    }

    /// Notes that a list is being looked at now. What is added to it from here on is looked at later. Returns whether
    /// all of it is to be looked at, and not only what is in a hurry.
    pub(in crate::engine) fn begin(&self, list: RowList, now: Now) -> bool {
        match list {
            RowList::Wanting => {
                let alerted_at = self.get(LeaseWord::Alerted);
                let is_gathered = match alerted_at {
                    // Whoever looked last did not reach the end of the list.
                    0 => self.get(LeaseWord::Unmet) == 0,
                    _ => self.gathered_after(alerted_at) <= now.monotonic,
                };
                if is_gathered {
                    self.set(LeaseWord::Alerted, 0);
                }
                self.set(LeaseWord::Unmet, 0);
                self.set(LeaseWord::PacedUntil, now.monotonic.saturating_add(PACE));
                is_gathered
            }
            RowList::Kept => {
                self.set(LeaseWord::UsedAt, now.monotonic);
                true
            }
        }
    }

    /// Notes that a look did not reach the end of the list, so that the rest is looked at next.
    pub(in crate::engine) fn break_off(&self, list: RowList, took_all: bool, now: u64) {
        match list {
            // As long as anything is on it and nothing says when to look, it is looked at soon.
            RowList::Wanting if took_all => {}
            RowList::Wanting => self.set(LeaseWord::Unmet, now.max(1)),
            RowList::Kept => self.set(LeaseWord::UsedAt, 0),
        }
    }

    /// Notes that a row is left until more have gathered.
    pub(in crate::engine) fn leave(&self, now: Now) {
        if self.get(LeaseWord::Alerted) == 0 {
            self.set(LeaseWord::Alerted, now.monotonic.max(1));
        }
    }

    /// When to look at the rows that have something leased.
    fn at_kept(&self) -> u64 {
        self.gathered_after(self.get(LeaseWord::UsedAt))
    }
}

impl<'a> RuledShard<'a> {
    pub(in crate::engine) fn looks(&self) -> Looks<'a> {
        let mut leased = self.limits.iter().filter(|limit| limit.is_leased());
        let gathered_for = leased.clone().map(LimitRules::reports_gathered_for).min();
        let words = leased
            .next()
            .and_then(|limit| limit.lease_words(self.memory.lease_row()));
        let gathered_for = gathered_for.unwrap_or(1);
        Looks {
            words: words.unwrap_or_default(),
            gathered_for,
            ahead: self.set.seed[0] % gathered_for,
        }
    }

    /// The rows that have a lease record.
    pub(in crate::engine) fn lease_rows(&self) -> impl Iterator<Item = Row<'a>> {
        let memory = self.memory;
        let of_keys = memory.is_keyed().then(|| memory.all_rows());
        std::iter::once(memory.lease_row()).chain(of_keys.into_iter().flatten())
    }

    /// Has the process on duty look at every row, because it is not known which are listed.
    pub(in crate::engine) fn list_all_rows(&self) {
        if self.memory.is_keyed() && self.set.has_lease_room {
            self.memory.row_list(RowList::Wanting).fill();
            self.looks().set(LeaseWord::Alerted, 1);
            self.looks().set(LeaseWord::Unmet, 1);
        }
    }

    /// Lists a row that wants something. Returns whether to wake the process on duty, which may sleep longer.
    pub(in crate::engine) fn want_for(&self, row: Row<'_>, now: Now, urgent: bool) -> bool {
        self.memory.row_list(RowList::Wanting).insert(row.index);
        let looks = self.looks();
        let word = if urgent {
            LeaseWord::Unmet
        } else {
            LeaseWord::Alerted
        };
        let is_news = looks.get(word) == 0;
        if is_news {
            looks.set(word, now.monotonic.max(1));
        }
        is_news
    }

    /// When to look at the rows of a list, on the segment clock; `None` if there are none.
    pub(in crate::engine) fn list_due_at(&self, list: RowList) -> Option<u64> {
        let rows = self.memory.row_list(list);
        match list {
            RowList::Wanting => self.looks().at_wanting(rows),
            RowList::Kept => (!rows.is_empty()).then(|| self.looks().at_kept()),
        }
    }

    /// When to look at any row, on the segment clock; `None` if none has anything to say.
    pub(in crate::engine) fn keys_due_at(&self) -> Option<u64> {
        let lists = [RowList::Wanting, RowList::Kept];
        lists.into_iter().filter_map(|list| self.list_due_at(list)).min()
    }

    /// The state of a limit that hosts share, which a set without keys has in `row`. In a keyed set, what the shard
    /// knows of the store.
    pub(crate) fn lease_state(&self, limit: &LimitRules, row: Row<'_>, now: Now) -> Option<LeaseState> {
        if !self.memory.is_keyed() {
            return limit.lease_state(row, now);
        }
        let state = limit.lease_state(self.memory.lease_row(), now)?;
        let [wanting, kept] = [RowList::Wanting, RowList::Kept].map(|list| self.memory.row_list(list));
        Some(LeaseState {
            keys: Some(wanting.count_with(kept)),
            is_given_back: state.is_draining && wanting.is_empty() && kept.is_empty(),
            ..state
        })
    }
}
