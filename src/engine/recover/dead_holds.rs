//! What dead processes hold, for callers that only look. They leave it out of what they report; it stays where it is
//! until the next request that needs it takes it back.
//!
//! Only what is held of concurrency is left out. What the dead were granted of a rate, or had drawn, counts as used
//! until then.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::choices::Kind;
use crate::engine::recover::reclaim_places::{LOOKS, UnleasedHold};
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::set_engine::{RuledShard, ShardAt};
use crate::shm::layout::places::HoldPlace;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::Row;
use crate::shm::lock::store::Direct;
use crate::sorting::sort_by;

/// Units that are left out, for each limit of a set.
pub(crate) type OfDead = [u64; MAX_LIMITS];

/// The holds of a shard from which a reclaim would take something back: their owners are dead or gave them back without
/// the lock, a lease of theirs has expired, or their places are no longer leased to this host.
#[derive(Debug)]
pub(crate) struct DeadHolds {
    owners: HashSet<u64>,
    /// Sorted by index.
    unleased: Vec<UnleasedHold>,
    /// Row and index of each hold, sorted.
    holds: Vec<(u64, u64)>,
}

/// Room for a copy of one row's states, and of those that all keys share.
#[derive(Debug)]
pub(crate) struct RowCopy {
    state: Vec<AtomicU64>,
    overall: Vec<AtomicU64>,
}

/// A row as if dead processes held nothing of it.
#[derive(Debug)]
pub(crate) struct LeftOut<'a> {
    pub(crate) row: Row<'a>,
    /// Units that are left out.
    pub(crate) of_dead: OfDead,
    /// Holds that would be left empty.
    pub(crate) holds: u64,
}

impl DeadHolds {
    /// Calls `is_alive` once for each owner. Takes no lock.
    pub(crate) fn find(at: ShardAt<'_>, is_alive: impl Fn(u64) -> bool) -> Self {
        let mut owners = at.shard.owners();
        owners.retain(|owner| !is_alive(*owner));
        let mut dead = Self {
            owners,
            unleased: Vec::new(),
            holds: Vec::new(),
        };
        let memory = at.shard.memory;
        // In the middle of a renewal nothing would seem to be leased; nothing is left out then.
        let unleased = || at.shard.unleased_holds(at.now, |hold| dead.is_dead(hold));
        dead.unleased = at.shard.read_consistently(LOOKS, unleased).unwrap_or_default();
        sort_by(&mut dead.unleased, |one, other| one.index < other.index);
        for index in 0..memory.touched_holds() {
            if let Some(hold) = memory
                .hold(index)
                .filter(|hold| dead.has_part_in(at, index, *hold))
            {
                dead.holds.push((hold.row().index, index));
            }
        }
        sort_by(&mut dead.holds, |one, other| one < other);
        dead
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// What is left out of all rows together, and how the limits that all keys share stand without it.
    pub(crate) fn of_all_rows<'a>(&self, at: ShardAt<'a>, copy: &'a RowCopy) -> LeftOut<'a> {
        let mut left_out = LeftOut::nothing_of(at.shard.memory.absent_row());
        if self.is_empty() {
            return left_out;
        }
        left_out.row = left_out.row.copied_to(&[], &copy.overall);
        for (_, index) in &self.holds {
            if let Some(hold) = at.shard.memory.hold(*index) {
                left_out.add(at, *index, hold, self);
            }
        }
        left_out
    }

    /// The row as if dead processes held nothing of it.
    ///
    /// Does not allocate, and looks at each hold again: it may have been given back since it was found.
    pub(crate) fn leave_out<'a>(&self, at: ShardAt<'_>, row: Row<'a>, copy: &'a RowCopy) -> LeftOut<'a> {
        let mut left_out = LeftOut::nothing_of(row);
        // Holds of all rows have something of what all keys share.
        let holds = if at.shard.set.has_overall() {
            &self.holds
        } else {
            of_row(&self.holds, row.index)
        };
        if holds.is_empty() {
            return left_out;
        }
        left_out.row = row.copied_to(&copy.state, &copy.overall);
        for (_, index) in holds {
            let hold = at.shard.memory.hold(*index);
            let Some(hold) = hold.filter(|hold| self.has_part_in(at, *index, *hold)) else {
                continue;
            };
            if hold.row().index == row.index {
                left_out.add(at, *index, hold, self);
            } else if at.shard.set.has_overall() {
                left_out.add_overall(at, *index, hold, self);
            }
        }
        left_out
    }

    /// The limits whose places in the hold at `index` are not leased, as a bit mask.
    fn unleased_of(&self, index: u64) -> u32 {
        let found = self.unleased.binary_search_by_key(&index, |hold| hold.index);
        let found = found.ok().and_then(|position| self.unleased.get(position));
        found.map_or(0, |hold| hold.limits)
    }

    /// Whether all of the hold comes back: its owner is dead, or gave it back.
    fn is_dead(&self, hold: HoldPlace<'_>) -> bool {
        self.owners.contains(&hold.owner().load(Ordering::Relaxed)) || hold.mark().is_some()
    }

    /// Whether a reclaim would give back anything of the hold.
    fn has_part_in(&self, at: ShardAt<'_>, index: u64, hold: HoldPlace<'_>) -> bool {
        hold.is_taken()
            && (self.is_dead(hold)
                || self.unleased_of(index) != 0
                || at
                    .shard
                    .expiry_of_hold(hold)
                    .is_some_and(|expiry| expiry <= at.now.monotonic))
    }
}

impl RowCopy {
    /// Room for a row of the shard, unless `dead` is empty.
    pub(crate) fn new(shard: RuledShard<'_>, dead: &DeadHolds) -> Self {
        let room = |words: usize| {
            let words = if dead.is_empty() { 0 } else { words };
            (0..words).map(|_| AtomicU64::new(0)).collect()
        };
        Self {
            state: room(shard.memory.state_words()),
            overall: room(shard.memory.overall_words()),
        }
    }
}

impl<'a> LeftOut<'a> {
    fn nothing_of(row: Row<'a>) -> Self {
        Self {
            row,
            of_dead: [0; MAX_LIMITS],
            holds: 0,
        }
    }

    /// Leaves out what the hold at `index` has of concurrency: all of it if it is dead, otherwise that of limits whose
    /// lease has expired or that are no longer leased to this host.
    fn add(&mut self, at: ShardAt<'_>, index: u64, hold: HoldPlace<'_>, dead: &DeadHolds) {
        let is_empty = self.add_some(at, index, hold, dead, |_| true);
        self.holds += u64::from(dead.is_dead(hold) || is_empty);
    }

    /// Leaves out what the hold of another key has of concurrency that all keys share.
    fn add_overall(&mut self, at: ShardAt<'_>, index: u64, hold: HoldPlace<'_>, dead: &DeadHolds) {
        self.add_some(at, index, hold, dead, LimitRules::is_overall);
    }

    /// Returns whether nothing else of the hold is left.
    fn add_some(
        &mut self,
        at: ShardAt<'_>,
        index: u64,
        hold: HoldPlace<'_>,
        dead: &DeadHolds,
        is_meant: impl Fn(&LimitRules) -> bool,
    ) -> bool {
        let (is_dead, unleased) = (dead.is_dead(hold), dead.unleased_of(index));
        let counts_from = at.shard.leases_count_from(hold);
        let mut is_empty = true;
        let limits = at.shard.of(self.row).rules.held_limits();
        for (word, limit) in hold
            .amounts()
            .iter()
            .zip(limits)
            .filter(|(_, limit)| is_meant(limit))
        {
            let amount = limit.held(word.load(Ordering::Relaxed));
            let is_over = limit.has_expired(counts_from, at.now) || unleased & 1 << limit.index != 0;
            if limit.kind == Kind::Concurrency && (is_dead || is_over) {
                self.add_units(limit, amount);
            } else {
                is_empty &= amount == 0;
            }
        }
        is_empty
    }

    fn add_units(&mut self, limit: &LimitRules, units: u64) {
        // The copy of a row is private; an absent row has no words.
        limit.give_back(self.row, Direct, units);
        if let Some(sum) = self.of_dead.get_mut(limit.index) {
            *sum = sum.saturating_add(units);
        }
    }
}

/// The part of a list, sorted by row, that is about one row.
fn of_row(all: &[(u64, u64)], row: u64) -> &[(u64, u64)] {
    let start = all.partition_point(|(of, _)| *of < row);
    let end = all.partition_point(|(of, _)| *of <= row);
    all.get(start..end).unwrap_or_default()
}
