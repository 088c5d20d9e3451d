//! The table of holds: what permits hold, and who owns them. Everything else can be counted again from it.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::own_capacities::LimitMask;
use crate::limit::Sample;
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::records::{HoldLabel, MAX_LIMITS};
use crate::shm::layout::row::Row;
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::lock::journal::Transaction;

/// The greatest serial number of a hold. The one after it is 1.
const MAX_SERIAL: u64 = u64::MAX >> 1;

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its owner gave it back, and says whether the work failed.
    Released {
        failed: bool,
    },
    /// Its owner gave it back some time ago, without the lock. How long the work took is unknown.
    Finished {
        failed: bool,
    },
    OwnerDied,
    /// Nobody used it, or it was held for so long that it says nothing about the work.
    Undone,
}

impl Ending {
    /// Whether the work under the hold is known to have failed.
    #[inline(always)]
    pub(in crate::engine) fn has_failed(self) -> bool {
        match self {
            Self::Released { failed } | Self::Finished { failed } => failed,
            Self::OwnerDied | Self::Undone => false,
        }
    }
}

/// Where a new hold would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeHold {
    /// A hold that was given back; `next` is the head of the free list after it.
    Returned { index: u64, next: u64 },
    /// The first hold that was never taken.
    Untouched { index: u64 },
    /// The table is full.
    None,
    /// The free list names a hold that cannot be free.
    Damaged,
}

impl ShardMemory {
    /// Whether every hold is in use.
    #[inline(always)]
    pub(crate) fn has_no_free_hold(&self) -> bool {
        let control = self.control();
        control.free_hold.load(Ordering::Relaxed) == 0
            && control.untouched_hold.load(Ordering::Relaxed) == self.hold_capacity()
    }

    /// The label of the request that took the hold at `index`; `None` if the set keeps no labels.
    pub(in crate::engine) fn label(&self, index: u64) -> Option<&HoldLabel> {
        self.labels.get(usize::try_from(index).ok()?)
    }

    #[inline(always)]
    pub(crate) fn find_free_hold(&self) -> FreeHold {
        let control = self.control();
        match control.free_hold.load(Ordering::Relaxed).checked_sub(1) {
            Some(index) => match self.hold(index) {
                Some(hold) if !hold.is_taken() => FreeHold::Returned {
                    index,
                    next: hold.next_free().load(Ordering::Relaxed),
                },
                _ => FreeHold::Damaged,
            },
            None => {
                let index = control.untouched_hold.load(Ordering::Relaxed);
                match self.hold(index) {
                    None if index == self.hold_capacity() => FreeHold::None,
                    Some(hold) if !hold.is_taken() => FreeHold::Untouched { index },
                    _ => FreeHold::Damaged,
                }
            }
        }
    }
}

impl FreeHold {
    /// Its index in the table, if there is one.
    pub(in crate::engine) fn index(self) -> Option<u64> {
        match self {
            Self::Returned { index, .. } | Self::Untouched { index } => Some(index),
            Self::None | Self::Damaged => None,
        }
    }
}

impl ShardAt<'_> {
    /// Takes the free hold found by [`ShardMemory::find_free_hold`], with an amount for each held limit.
    #[inline(always)]
    pub(crate) fn fill_hold(
        &self,
        transaction: &mut Transaction<'_>,
        row: Row<'_>,
        free: FreeHold,
        owner: u64,
        amount_of: impl Fn(usize) -> u64,
    ) -> Option<HoldReference> {
        let control = self.shard.memory.control();
        let index = match free {
            FreeHold::Returned { index, next } => {
                transaction.store(&control.free_hold, next);
                index
            }
            FreeHold::Untouched { index } => {
                transaction.store(&control.untouched_hold, index + 1);
                index
            }
            FreeHold::None | FreeHold::Damaged => return None,
        };
        let hold = self.shard.memory.hold(index)?;
        let latest = control.hold_serial.load(Ordering::Relaxed);
        // A mark is twice the serial, and has to fit into a word.
        let serial = NonZeroU64::new(latest.wrapping_add(1) & MAX_SERIAL).unwrap_or(NonZeroU64::MIN);
        // What follows is not journalled: nobody misses a serial that was skipped, and in a free hold these words mean
        // nothing. They are in place before the hold is taken.
        control.hold_serial.store(serial.get(), Ordering::Relaxed);
        hold.serial().store(serial.get(), Ordering::Relaxed);
        hold.taken_at().store(self.now.monotonic, Ordering::Relaxed);
        hold.row_word()
            .store(row.reference().to_word(), Ordering::Relaxed);
        // Damage, or the serials have started again: no earlier permit can have left such a mark.
        if hold.returned().load(Ordering::Relaxed) >= 2 * serial.get() {
            hold.returned().store(0, Ordering::Relaxed);
        }
        if self.shard.has_leases {
            // A late renewal by an earlier permit cannot make this any later: it read the clock before it saw that the
            // hold was still its own.
            hold.renewed_at().store(self.now.monotonic, Ordering::Relaxed);
        }
        if self.shard.set.has_credit() {
            // A free hold keeps the tag of its latest batch.
            for (word, limit) in hold.amounts().iter().zip(&self.shard.held_indexes) {
                transaction.store(word, amount_of(*limit));
            }
        } else {
            for (word, limit) in hold.amounts().iter().zip(&self.shard.held_indexes) {
                word.store(amount_of(*limit), Ordering::Relaxed);
            }
        }
        // After the serial: a process that checks without the lock whether a hold is still its own must never see its
        // own serial together with the next owner.
        transaction.store(hold.owner(), owner);
        // This word was a link of the free list, or says what expired of the last hold.
        if hold.expired().load(Ordering::Relaxed) != 0 {
            transaction.store(hold.expired(), 0);
        }
        row.pin(transaction);
        let active = control.active.load(Ordering::Relaxed).saturating_add(1);
        transaction.store(&control.active, active);
        transaction.raise(&control.active_high_water, active);
        Some(HoldReference { index, serial })
    }

    /// Takes the hold like [`fill_hold`](Self::fill_hold), with what a request takes of each held limit except those
    /// `waived`. Raises the high-water marks.
    #[inline(always)]
    pub(in crate::engine) fn take_hold(
        &self,
        transaction: &mut Transaction<'_>,
        row: Row<'_>,
        free: FreeHold,
        owner: u64,
        costs: &Costs,
        waived: LimitMask,
    ) -> Option<HoldReference> {
        let hold = self.fill_hold(transaction, row, free, owner, |limit| {
            if costs.limits.contains(limit) && !waived.contains(limit) {
                costs.amounts[limit % MAX_LIMITS]
            } else {
                0
            }
        })?;
        for limit in self.shard.held_limits() {
            if let Some(in_use) = limit.in_use(row) {
                let high_water = &self.shard.counters(limit.index).high_water;
                transaction.raise(high_water, in_use.load(Ordering::Relaxed));
            }
        }
        Some(hold)
    }
}

impl LockedShard<'_> {
    /// Writes down the label of the request that a decision's hold was taken for, if there is one. Call this when the
    /// hold is committed: one that is undone belongs to no permit, and gets no label.
    #[inline(always)]
    pub(in crate::engine) fn keep_label(&self, decision: &Decision, costs: &Costs) {
        if let Some(label) = &costs.label {
            self.write_label(decision, label);
        }
    }

    #[inline(never)]
    fn write_label(&self, decision: &Decision, label: &str) {
        if let Some(hold) = decision.hold()
            && let Some(place) = self.shard.memory.label(hold.index)
            // A waiter's grant may have been taken back before it was collected, and the hold may be another's by now.
            && self.owns(hold, decision.owner)
        {
            place.write(hold.serial.get(), label);
        }
    }

    /// Whether a hold still belongs to its permit.
    pub(crate) fn owns(&self, reference: HoldReference, owner: u64) -> bool {
        self.own_hold(reference, owner).is_some()
    }

    /// The place of a permit's hold, if it still belongs to it.
    #[inline]
    pub(in crate::engine) fn own_hold(&self, reference: HoldReference, owner: u64) -> Option<HoldPlace<'_>> {
        let hold = self.shard.memory.hold(reference.index)?;
        let is_own = hold.owner().load(Ordering::Relaxed) == owner
            && hold.serial().load(Ordering::Relaxed) == reference.serial.get();
        is_own.then_some(hold)
    }

    /// Whether a lease of the hold has expired and what it covered was given back.
    pub(crate) fn has_lost_a_lease(&self, reference: HoldReference) -> bool {
        self.shard
            .memory
            .hold(reference.index)
            .is_some_and(|hold| hold.expired().load(Ordering::Relaxed) != 0)
    }

    /// Frees a hold and gives back what it holds. Returns whether `index` is in the table.
    pub(crate) fn free_hold(&self, transaction: &mut Transaction<'_>, index: u64, ending: Ending) -> bool {
        let Some(hold) = self.shard.memory.hold(index) else {
            return false;
        };
        self.free_place(transaction, index, hold, ending);
        true
    }

    /// Frees a hold whose place is known, and gives back what it holds.
    #[inline]
    pub(in crate::engine) fn free_place(
        &self,
        transaction: &mut Transaction<'_>,
        index: u64,
        hold: HoldPlace<'_>,
        ending: Ending,
    ) {
        let control = self.shard.memory.control();
        let taken = hold.origin();
        let row = self.shard.row(taken.row.index);
        for (word, limit) in hold.amounts().iter().zip(self.shard.of(row).rules.held_limits()) {
            if limit.credit.is_some() {
                self.settle_batch(transaction, limit, row, (word, None), taken, ending);
                continue;
            }
            let amount = word.load(Ordering::Relaxed);
            if limit.adapts || ending.has_failed() {
                self.observe_ending(transaction, limit, row, amount, taken.instant, ending);
            }
            limit.give_back(row, &mut *transaction, amount);
            if ending == Ending::OwnerDied {
                transaction.count(&self.shard.counters(limit.index).reclaimed, amount);
            }
        }
        row.unpin(transaction);
        transaction.store(hold.owner(), 0);
        transaction.store(hold.next_free(), control.free_hold.load(Ordering::Relaxed));
        transaction.store(&control.free_hold, index + 1);
        transaction.subtract(&control.active, 1);
    }

    /// Tells a limit how the work went that held `amount` of it from the instant `since` on.
    #[inline(never)]
    fn observe_ending(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        amount: u64,
        since: u64,
        ending: Ending,
    ) {
        // If another process completes the return, only whether the work failed is known, not how long it took.
        let (Ending::Released { failed }
        | Ending::Finished {
            failed: failed @ true,
        }) = ending
        else {
            return;
        };
        let Some(in_use) = limit.in_use(row).filter(|_| amount > 0) else {
            return;
        };
        let sample = Sample {
            latency: self.now.monotonic.saturating_sub(since),
            in_flight: in_use.load(Ordering::Relaxed),
            failed,
        };
        limit.observe(row, transaction, self.now, sample);
        transaction.count(&self.shard.counters(limit.index).failed, u64::from(failed));
    }
}
