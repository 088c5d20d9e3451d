//! What keys are charged in the order among keys, and the correction once it is known what they used.
//!
//! The charge for a request is a time: how long an overall limit needs to replenish what the request takes, or how long
//! the request holds its places, multiplied by their share of all places. The longest of these times counts. How long
//! places are held is known only when they are given back; until then the key's average stands in for it.

use std::sync::atomic::Ordering;

use crate::engine::recover::repairs::Extent;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::set_engine::{RuledShard, ShardAt};
use crate::engine::terms::decision::{Costs, Decision};
use crate::order::{self, Served};
use crate::shm::layout::places::{HoldReference, TicketPlace};
use crate::shm::layout::row::Row;
use crate::units::NANOS_PER_SECOND;

/// How long a key that has never given back a place is expected to hold one.
const HELD_AT_FIRST: u64 = NANOS_PER_SECOND;

/// Each new value moves the average by one part in this many of the difference.
const SHARE_OF_NEW: u64 = 8;

impl RuledShard<'_> {
    /// A key's share of what all keys have together.
    pub(in crate::engine) fn weight_of(&self, row: u64) -> u64 {
        self.of(self.row(row)).rules.weight
    }

    /// The charge for amounts that time replenishes.
    fn charge_for_units(&self, amounts: impl Iterator<Item = (usize, u64)>) -> Served {
        let charges = amounts.map(|(index, amount)| self.rules.time_for(index, amount));
        charges.max().unwrap_or(0)
    }
}

impl ShardAt<'_> {
    /// The charge for holding places for `held` nanoseconds.
    fn charge_for_places(&self, amounts: impl Iterator<Item = (usize, u64)>, held: u64) -> Served {
        let row = self.shard.absent_row();
        let charges = amounts.filter_map(|(index, amount)| {
            let limit = self.shard.limits.get(index).filter(|limit| limit.is_overall())?;
            Some(limit.time_held(row, self.now, amount, held))
        });
        charges.max().unwrap_or(0)
    }

    /// How long a key holds its places on average, in nanoseconds.
    fn mean_held(&self, row: u64) -> u64 {
        let order = self.shard.memory.row_order(row);
        match order.map_or(0, |order| order.mean_held.load(Ordering::Relaxed)) {
            0 => HELD_AT_FIRST,
            mean => mean,
        }
    }

    /// What a request is charged when it is granted.
    pub(in crate::engine) fn charge_for(&self, row: u64, costs: &Costs) -> Served {
        let for_places = self.charge_for_places(costs.iter(), self.mean_held(row));
        self.shard.charge_for_units(costs.iter()).max(for_places)
    }
}

impl LockedShard<'_> {
    /// Charges the key whose ticket is first in order for that ticket's request, which was granted, or kept the others
    /// waiting until it gave up.
    pub(in crate::engine) fn charge_in_order(&self, row: u64, costs: &Costs, hold: Option<HoldReference>) {
        let charge = self.charge_for(row, costs);
        let weight = self.shard.weight_of(row);
        let order = &mut OrderWords::of(self.shard.memory);
        // It fails only if something was damaged, which is found when the key is put back in order.
        let _ = order::charge(order, row, charge, weight);
        let of_hold = hold.and_then(|hold| Some((self.shard.memory.hold_order(hold.index)?, hold)));
        if let Some((words, hold)) = of_hold {
            words.serial.store(hold.serial.get(), Ordering::Relaxed);
            words.charged.store(charge, Ordering::Relaxed);
            let used = self.shard.charge_for_units(costs.iter());
            words.used.store(used, Ordering::Relaxed);
        }
    }

    /// Corrects what a key was charged at `charged_at`.
    fn correct(&self, row: u64, charged: Served, used: Served, charged_at: u64) {
        let order = &mut OrderWords::of(self.shard.memory);
        let weight = self.shard.weight_of(row);
        if order::correct(order, row, charged, used, weight, charged_at).is_err() {
            self.rebuild_order(Extent::Whole);
        }
    }

    /// Corrects what a key was charged for a hold that was just freed, according to how long it was held while others
    /// waited.
    #[cold]
    pub(in crate::engine) fn correct_freed(&self, index: u64) {
        if let Some(hold) = self.shard.memory.hold(index) {
            let indexes = self.shard.held_indexes.iter().copied();
            let amounts = hold.amounts().iter().map(|amount| amount.load(Ordering::Relaxed));
            self.correct_given_back(index, indexes.zip(amounts));
        }
    }

    /// The same for some places of a hold, given by limit, whose lease has expired.
    #[cold]
    pub(in crate::engine) fn correct_given_back(
        &self,
        index: u64,
        amounts: impl Iterator<Item = (usize, u64)>,
    ) {
        let memory = self.shard.memory;
        let (Some(hold), Some(words)) = (memory.hold(index), memory.hold_order(index)) else {
            return;
        };
        let Some(since) = order::contended_since(&OrderWords::of(memory)) else {
            return;
        };
        // No row is given to another key while a hold refers to it. If it was reset or changed its tier meanwhile, its key
        // still held the places, and pays for them by its present weight.
        let row = self.shard.row(hold.row().index);
        if row.is_absent() {
            return;
        }
        let taken_at = hold.taken_at().load(Ordering::Relaxed);
        let held = self.now.monotonic.saturating_sub(taken_at);
        if let Some(order) = memory.row_order(row.index) {
            let mean = self.mean_held(row.index);
            let mean = mean - mean / SHARE_OF_NEW + held / SHARE_OF_NEW;
            order.mean_held.store(mean.max(1), Ordering::Relaxed);
        }
        let held_meanwhile = self.now.monotonic.saturating_sub(taken_at.max(since));
        let for_places = self.charge_for_places(amounts, held_meanwhile);
        let is_own = words.serial.load(Ordering::Relaxed) == hold.serial().load(Ordering::Relaxed);
        let [charged, used] = if is_own {
            [&words.charged, &words.used].map(|word| word.load(Ordering::Relaxed))
        } else {
            [0; 2]
        };
        words.serial.store(0, Ordering::Relaxed);
        self.correct(row.index, charged, used.max(for_places), taken_at);
    }

    /// What the key of a granted ticket was charged for it.
    pub(in crate::engine) fn charged_for(&self, ticket: TicketPlace<'_>) -> Served {
        if !self.shard.set.has_overall() {
            return 0;
        }
        let hold = self.shard.hold_of_grant(ticket);
        let of_hold = hold.and_then(|hold| Some((self.shard.memory.hold_order(hold.index)?, hold)));
        match of_hold {
            Some((words, hold)) if words.serial.load(Ordering::Relaxed) == hold.serial.get() => {
                words.charged.load(Ordering::Relaxed)
            }
            Some(_) => 0,
            None => self.shard.charge_for_units(self.shard.costs_of(ticket).iter()),
        }
    }

    /// Takes back what a key was charged for a grant that was undone.
    #[cold]
    pub(in crate::engine) fn correct_undone(&self, ticket: TicketPlace<'_>, charged: Served) {
        let granted_at = ticket.granted_at().load(Ordering::Relaxed);
        self.correct(ticket.row().index, charged, 0, granted_at);
    }

    /// Corrects what the key of a permit was charged, according to what the permit has used. If the permit has a hold,
    /// the correction is made when the hold is given back.
    #[cold]
    pub(in crate::engine) fn correct_settled(
        &self,
        row: Row<'_>,
        permit: &Decision,
        actual: &[(usize, u64)],
    ) {
        let reserved = || permit.iter().map(|(index, decided)| (index, decided.cost()));
        let used = reserved().map(|(index, cost)| {
            let named = actual.iter().find(|(limit, _)| *limit == index);
            named.copied().unwrap_or((index, cost))
        });
        let used = self.shard.charge_for_units(used);
        if row.is_absent() {
            return;
        }
        let Some(hold) = permit.hold() else {
            let charged = self.shard.charge_for_units(reserved());
            self.correct(row.index, charged, used, permit.decided_at);
            return;
        };
        if let Some(words) = self.shard.memory.hold_order(hold.index)
            && words.serial.load(Ordering::Relaxed) == hold.serial.get()
        {
            words.used.store(used, Ordering::Relaxed);
        }
    }

    /// Charges a key for what it has used without a reservation.
    #[cold]
    pub(in crate::engine) fn charge_used(&self, row: Row<'_>, costs: &Costs) {
        if !row.is_absent() {
            let used = self.shard.charge_for_units(costs.iter());
            self.correct(row.index, 0, used, 0);
        }
    }
}
