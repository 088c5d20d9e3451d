//! What is done when the previous owner of a lock died while holding it.
//!
//! Everything here can be repeated: any number of recoverers may die on the way, and the lock tells the next one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::key_table::TableWords;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::recovery_report::Repairs;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::order::{self, Place};
use crate::queue::{self, Phase, Queue};
use crate::shm::layout::places::HoldPlace;
use crate::shm::layout::records::{MAX_LIMITS, SET_UNCHECKED, SET_UNRECOVERED, is_poison};
use crate::shm::layout::row::Row;
use crate::shm::layout::row_references::RowReferences;
use crate::shm::lock::journal::JournalState;
use crate::shm::lock::store::Direct;
use crate::table;

/// The holds could not be counted: a rebuild may help.
pub(crate) const POISONED_BY_COUNTS: u64 = 1;

/// The journal named words that no operation changes: what they were is lost, and only a reset helps.
pub(crate) const POISONED_BY_JOURNAL: u64 = 2;

/// How much of the table of keys is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The rows that the latest operation changed, and those that holds and tickets refer to.
    LatestOperation,
    Whole,
}

impl LockedShard<'_> {
    /// Puts right what a dead owner left behind.
    #[cold]
    pub(in crate::engine) fn recover(&self, owner_died: bool) -> Repairs {
        let shard = self.shard;
        let control = shard.memory.control();
        let journal = shard.memory.journal();
        let mut repairs = Repairs {
            owner_died,
            ..Repairs::default()
        };
        let found = journal.state();
        let journal_is_sound = match found {
            // One word changed by one store has either changed or not.
            JournalState::Idle | JournalState::Change => true,
            JournalState::Undo(count) => {
                repairs.undone_words = count;
                journal.undo(count)
            }
            JournalState::Reset => {
                repairs.finished_reset = true;
                self.carry_out_reset();
                true
            }
            JournalState::Rebuild => {
                repairs.rebuilt = true;
                self.rebuild();
                true
            }
            JournalState::Damaged(_) => false,
        };
        if control.poisoned.load(Ordering::Relaxed) == SET_UNCHECKED {
            // After undoing, which may have brought a lease of the former host back; and before the word is replaced,
            // so that whoever recovers after this recoverer's death does it as well.
            for row in shard.lease_rows() {
                for limit in &shard.limits {
                    limit.begin_as_another_host(row);
                }
            }
            shard.list_all_rows();
        }
        if !journal_is_sound {
            // Stored before the journal is closed: if this recoverer dies after that, the next one finds the journal
            // idle.
            control.poisoned.store(POISONED_BY_JOURNAL, Ordering::Relaxed);
        }
        if journal.state() != JournalState::Idle {
            journal.close();
        }
        if owner_died {
            shard.list_all_rows();
            shard.look_for_lapses_anew();
            control
                .last_recoverer
                .store(self.engine.membership.owner_so_far(), Ordering::Relaxed);
            control.recoveries.store(
                control.recoveries.load(Ordering::Relaxed).saturating_add(1),
                Ordering::Relaxed,
            );
        }
        let poisoned = &control.poisoned;
        // An operation that was undone, or the reset of one row, leaves the rest of the table as it was. After anything
        // else, and if it is not known what happened, all of it is checked.
        let was_of_few_rows = match found {
            JournalState::Idle | JournalState::Change | JournalState::Undo(_) => true,
            JournalState::Reset => control.reset_row.load(Ordering::Relaxed) != 0,
            JournalState::Rebuild | JournalState::Damaged(_) => false,
        };
        let extent = if was_of_few_rows && matches!(poisoned.load(Ordering::Relaxed), 0 | SET_UNRECOVERED) {
            Extent::LatestOperation
        } else {
            Extent::Whole
        };
        // The order among keys is not journalled.
        self.rebuild_order(extent);
        let mut is_consistent = shard.is_consistent(extent);
        if !is_consistent {
            repairs.rebuilt = true;
            self.rebuild();
            is_consistent = shard.is_consistent(Extent::Whole);
        }
        // Counts that can be rebuilt must not hide what the journal lost.
        match (poisoned.load(Ordering::Relaxed), is_consistent) {
            (word, false) if !is_poison(word) => poisoned.store(POISONED_BY_COUNTS, Ordering::Relaxed),
            (SET_UNCHECKED | SET_UNRECOVERED, true) => poisoned.store(0, Ordering::Relaxed),
            _ => {}
        }
        repairs.poisoned = poisoned.load(Ordering::Relaxed) != 0;
        repairs
    }

    /// Counts again everything that follows from fingerprints, holds and tickets: which row has which key, what is in
    /// use, how many holds are active and which are free, and the order of each queue.
    #[cold]
    pub(in crate::engine) fn rebuild(&self) {
        let shard = self.shard;
        let memory = shard.memory;
        let control = memory.control();
        memory.journal().mark_rebuild();
        // What `marks` says may be as wrong as what is counted again.
        memory.search_for_marks();
        if memory.is_keyed() {
            shard.rebuild_rows();
        }
        // Searched for, because a damaged word may point beyond the table, or before a hold in use.
        let is_taken = |index: &u64| memory.hold(*index).is_some_and(HoldPlace::is_taken);
        let touched = (0..memory.hold_capacity())
            .rev()
            .find(is_taken)
            .map_or(0, |last| last + 1);
        control.untouched_hold.store(touched, Ordering::Relaxed);
        let mut active = 0_u64;
        let mut first_free = 0;
        for index in (0..touched).rev() {
            let Some(hold) = memory.hold(index) else {
                continue;
            };
            if hold.is_taken() {
                active += 1;
                continue;
            }
            for (amount, limit) in hold.amounts().iter().zip(shard.held_limits()) {
                amount.store(
                    limit.nothing_held(amount.load(Ordering::Relaxed)),
                    Ordering::Relaxed,
                );
            }
            hold.next_free().store(first_free, Ordering::Relaxed);
            first_free = index + 1;
        }
        control.free_hold.store(first_free, Ordering::Relaxed);
        queue::rebuild(&mut QueueWords::changing(memory, Direct));
        self.rebuild_order(Extent::Whole);
        control.active.store(active, Ordering::Relaxed);
        let tallies = shard.tallies();
        for row in memory.all_rows() {
            let tally = tallies.get(&row.index);
            if let Some(word) = row.row_references() {
                let row_references = RowReferences(word.load(Ordering::Relaxed));
                let pins = tally.map_or(0, |tally| tally.pins);
                word.store(row_references.with_pins(pins).0, Ordering::Relaxed);
            }
            for (position, limit) in shard.held_limits_of_keys() {
                if let Some(in_use) = limit.in_use(row) {
                    let held = tally.map_or(0, |tally| tally.held(position));
                    in_use.store(held, Ordering::Relaxed);
                }
            }
        }
        for (in_use, held) in shard.overall_in_use(&tallies) {
            in_use.store(held, Ordering::Relaxed);
        }
        control.rebuilds.store(
            control.rebuilds.load(Ordering::Relaxed).saturating_add(1),
            Ordering::Relaxed,
        );
        memory.journal().close();
    }

    /// Counts everything again because the counts or links were found damaged.
    #[cold]
    pub(in crate::engine) fn rebuild_or_poison(&self) -> Result<(), Box<Error>> {
        self.rebuild();
        if self.shard.is_consistent(Extent::Whole) {
            return Ok(());
        }
        let poisoned = &self.shard.memory.control().poisoned;
        poisoned.store(POISONED_BY_COUNTS, Ordering::Relaxed);
        Err(self.shard.poisoned())
    }
}

impl SegmentEngine {
    /// Recovers a shard now: its lock, its counts, and what the dead hold. Counts everything again if the counts are
    /// wrong, or if `rebuilds` says so. Returns what was repaired under the lock, and how many holds of dead
    /// owners were given back.
    pub(crate) fn repair(
        &self,
        shard: Shard<'_>,
        rebuilds: bool,
    ) -> Result<(Option<Repairs>, u64), Box<Error>> {
        let mut locked = self.lock(shard, LockFor::Repair, LockWait::Timeout)?;
        let mut repairs = locked.repairs();
        let shard = locked.shard;
        let poisoned = &shard.memory.control().poisoned;
        if rebuilds || !shard.is_consistent(Extent::Whole) {
            locked.rebuild();
            repairs.get_or_insert_default().rebuilt = true;
        }
        if poisoned.load(Ordering::Relaxed) == POISONED_BY_COUNTS && shard.is_consistent(Extent::Whole) {
            poisoned.store(0, Ordering::Relaxed);
        }
        if poisoned.load(Ordering::Relaxed) != 0 {
            repairs.get_or_insert_default().poisoned = true;
            return Ok((repairs, 0));
        }
        locked.serve_every_queue()?;
        drop(locked);
        Ok((repairs, self.reclaim(shard.unruled(), LockWait::Timeout)?))
    }
}

/// What holds and tickets say about one row.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Holds, and tickets that were granted or passed over and not collected.
    pins: u64,
    /// What is held of each limit that gives back, in the order of a hold's amounts.
    held: [u64; MAX_LIMITS],
}

impl Tally {
    fn held(&self, position: usize) -> u64 {
        self.held.get(position).copied().unwrap_or(0)
    }
}

impl<'a> RuledShard<'a> {
    fn taken_holds(&self, touched: u64) -> impl Iterator<Item = HoldPlace<'a>> {
        let memory = self.memory;
        (0..touched)
            .filter_map(|index| memory.hold(index))
            .filter(|hold| hold.is_taken())
    }

    /// What holds and tickets say about each row that any of them refers to.
    fn tallies(&self) -> HashMap<u64, Tally> {
        // Allocates under the lock, but only after a death or damage.
        let mut tallies: HashMap<u64, Tally> = HashMap::new();
        for hold in self.taken_holds(self.memory.touched_holds()) {
            let tally = tallies.entry(hold.row().index).or_default();
            tally.pins += 1;
            for (sum, amount) in tally.held.iter_mut().zip(hold.amounts()) {
                *sum = sum.saturating_add(amount.load(Ordering::Relaxed));
            }
        }
        let queue = QueueWords::reading(self.memory);
        for index in 0..self.memory.touched_tickets() {
            if matches!(
                queue::state(&queue, index).phase,
                Phase::Granted | Phase::PassedOver
            ) {
                tallies.entry(queue.queue_of(index)).or_default().pins += 1;
            }
        }
        tallies
    }

    /// The limits that each key has for itself and that give back, each with its position in a hold's amounts.
    fn held_limits_of_keys(&self) -> impl Iterator<Item = (usize, &'a LimitRules)> {
        self.rules
            .held_limits()
            .enumerate()
            .filter(|(_, limit)| !limit.is_overall())
    }

    /// The words that say how much is in use of what all keys have together, each with what holds say.
    fn overall_in_use(&self, tallies: &HashMap<u64, Tally>) -> impl Iterator<Item = (&'a AtomicU64, u64)> {
        let row = self.absent_row();
        let overall = self.rules.held_limits().enumerate();
        overall
            .filter(|(_, limit)| limit.is_overall())
            .filter_map(move |(position, limit)| {
                let held = tallies.values().map(|tally| tally.held(position));
                Some((limit.in_use(row)?, held.fold(0, u64::saturating_add)))
            })
    }

    /// Rebuilds the table of keys from the fingerprints, and resets rows without a key.
    fn rebuild_rows(&self) {
        table::rebuild(&mut TableWords::changing(self.memory, Direct));
        let mut keys = 0;
        for row in self.memory.all_rows() {
            if !row.is_unused() {
                keys += 1;
                continue;
            }
            for limit in self.limits_of_keys() {
                limit.reset(row);
            }
        }
        self.memory.control().keys.store(keys, Ordering::Relaxed);
    }

    /// Whether the counts agree with the holds. Takes bounded time, whatever the links say. Of the table of keys,
    /// checks only `extent`.
    pub(crate) fn is_consistent(&self, extent: Extent) -> bool {
        let control = self.memory.control();
        let touched = control.untouched_hold.load(Ordering::Relaxed);
        if touched > self.memory.hold_capacity() {
            return false;
        }
        let taken = self.taken_holds(touched).count() as u64;
        if control.active.load(Ordering::Relaxed) != taken {
            return false;
        }
        let mut free = 0;
        let mut next = control.free_hold.load(Ordering::Relaxed);
        while let Some(index) = next.checked_sub(1) {
            let Some(hold) = self.memory.hold(index) else {
                return false;
            };
            free += 1;
            if index >= touched || free > touched || hold.is_taken() {
                return false;
            }
            next = hold.next_free().load(Ordering::Relaxed);
        }
        taken + free == touched
            && queue::is_consistent(&QueueWords::reading(self.memory))
            && self.order_is_consistent(extent)
            && self.rows_are_consistent(extent)
            && self.counts_agree(extent)
    }

    /// Whether the order among keys agrees with itself, and all keys in it wait.
    fn order_is_consistent(&self, extent: Extent) -> bool {
        if extent == Extent::LatestOperation || self.memory.order().is_none() {
            // It was just rebuilt.
            return true;
        }
        let order = OrderWords::of(self.memory);
        let waits =
            |row: Row<'_>| order::place(&order, row.index) == Place::Nowhere || !self.has_no_waiters(row);
        order::is_consistent(&order) && self.memory.all_rows().all(waits)
    }

    fn rows_are_consistent(&self, extent: Extent) -> bool {
        if !self.memory.is_keyed() {
            return true;
        }
        let table = TableWords::reading(self.memory);
        if extent == Extent::LatestOperation {
            return table::is_consistent(&table, self.memory.noted_rows());
        }
        let used = self.memory.all_rows().filter(|row| !row.is_unused()).count() as u64;
        self.memory.control().keys.load(Ordering::Relaxed) == used
            && table::is_consistent(&table, 0..self.memory.row_count())
    }

    /// Whether each row, and what all keys have together, agrees with the holds and tickets that refer to it.
    fn counts_agree(&self, extent: Extent) -> bool {
        let tallies = self.tallies();
        let agrees = |row: Row<'_>| {
            let tally = tallies.get(&row.index);
            let pins_agree = row.row_references().is_none_or(|row_references| {
                RowReferences(row_references.load(Ordering::Relaxed)).pins()
                    == tally.map_or(0, |tally| tally.pins)
            });
            pins_agree
                && self.held_limits_of_keys().all(|(position, limit)| {
                    limit.in_use(row).is_none_or(|in_use| {
                        in_use.load(Ordering::Relaxed) == tally.map_or(0, |tally| tally.held(position))
                    })
                })
        };
        let mut overall = self.overall_in_use(&tallies);
        if !overall.all(|(in_use, held)| in_use.load(Ordering::Relaxed) == held) {
            return false;
        }
        if extent == Extent::Whole || !self.memory.is_keyed() {
            return self.memory.all_rows().all(agrees);
        }
        let mut rows = self.memory.noted_rows();
        rows.extend(tallies.keys());
        rows.into_iter()
            .filter_map(|row| self.memory.row(row))
            .all(agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_repaired_in_any_part_was_repaired_in_the_set() {
        let nothing = Repairs::default();
        let of_one_part = [
            nothing,
            Repairs {
                owner_died: true,
                ..nothing
            },
            Repairs {
                undone_words: 3,
                ..nothing
            },
            Repairs {
                finished_reset: true,
                ..nothing
            },
            Repairs {
                rebuilt: true,
                ..nothing
            },
            Repairs {
                poisoned: true,
                ..nothing
            },
        ];
        for repairs in of_one_part {
            for (mut sum, other, undone_words) in [
                (nothing, repairs, repairs.undone_words),
                (repairs, nothing, repairs.undone_words),
                (repairs, repairs, 2 * repairs.undone_words),
            ] {
                sum.add(other);
                assert_eq!(
                    sum,
                    Repairs {
                        undone_words,
                        ..repairs
                    }
                );
            }
        }
    }
}
