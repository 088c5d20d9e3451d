//! What happens to a permit after its admission: settling and releasing.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::choices::Kind;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::key_table::NoRow;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{SetEngine, Shard};
use crate::engine::terms::decision::Decision;
use crate::engine::terms::key_identity::KeyIdentity;
use crate::error::{Error, SegmentError};
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::Transaction;
use crate::table::Fingerprint;

/// One limit of a settled permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledLimit {
    pub(crate) index: usize,
    /// Units given back.
    pub(crate) refunded: u64,
    /// Units charged above what was reserved.
    pub(crate) overdraft: u64,
}

/// One limit of a permit that is being settled.
#[derive(Clone, Copy)]
struct Settling<'a> {
    /// The row of the permit's key.
    row: Row<'a>,
    /// Whether the key was given this row for the settlement, because it had lost its own.
    is_new: bool,
    permit: &'a Decision,
    index: usize,
}

/// The limits that were settled.
pub(crate) type SettledLimits = SmallVec<[SettledLimit; 4]>;

/// Whether a release gave back everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Released {
    /// The hold was the permit's and is free now.
    GivenBack,
    /// The hold had been reclaimed, or one of its leases had expired. What was left of it is free now.
    WasReclaimed,
}

impl SegmentEngine {
    /// Replaces what was reserved by what was used, for all limits at once. `actual` names only limits that the permit
    /// took.
    pub(crate) fn settle(
        &self,
        set: &SetEngine,
        permit: &Decision,
        actual: &[(usize, u64)],
        wait: LockWait,
    ) -> Result<SettledLimits, Box<Error>> {
        // Nothing is allocated under the lock.
        let mut settled = SettledLimits::with_capacity(actual.len());
        let mut locked = self.lock(set.shard(permit.shard()), LockFor::GiveBack, wait)?;
        let shard = locked.shard;
        let found = locked.find_row_of(permit);
        let row = match found {
            None if locked.charges_something(permit, actual) => locked.row_to_charge(permit)?,
            found => found,
        };
        // If there is no row left for the key, there is nothing to charge.
        let row = row.unwrap_or_else(|| shard.absent_row());
        let mut transaction = shard.memory.journal().begin();
        for (index, used) in actual {
            let settling = Settling {
                row,
                is_new: found.is_none(),
                permit,
                index: *index,
            };
            if let Some(limit) = locked.settle_limit(&mut transaction, settling, *used) {
                settled.push(limit);
            }
        }
        transaction.count(&shard.memory.control().settled, 1);
        shard.commit(&mut transaction)?;
        locked.note_report(row);
        if shard.set.has_overall() {
            locked.correct_settled(row, permit, actual);
        }
        // The settlement stands, whatever is wrong with the queue; the next operation reports that.
        let _ = locked.serve_next(row.index);
        Ok(settled)
    }

    /// Gives a hold back; `ending` says what an adaptive limit learns from it. If it cannot get the lock soon, leaves a
    /// mark instead, and whoever has the lock next completes the release.
    pub(crate) fn release(
        &self,
        shard: Shard<'_>,
        hold: HoldReference,
        owner: u64,
        ending: Ending,
    ) -> Result<Released, Box<Error>> {
        match self.release_under_lock(shard, hold, owner, ending) {
            Err(error) if matches!(*error, Error::Segment(SegmentError::LockStuck { .. })) => {
                Ok(self.release_by_mark(shard, hold, owner, ending.has_failed()))
            }
            released => released,
        }
    }

    #[inline(always)]
    fn release_under_lock(
        &self,
        shard: Shard<'_>,
        hold: HoldReference,
        owner: u64,
        ending: Ending,
    ) -> Result<Released, Box<Error>> {
        let has_expired = self.has_expired(shard, hold);
        // The time matters only to adaptive limits and to those that hosts share.
        let purpose = if shard.set.adapts || shard.set.has_lease_room {
            LockFor::GiveBack
        } else {
            LockFor::Timeless
        };
        let mut locked = self.lock(shard, purpose, LockWait::Briefly)?;
        let shard = locked.shard;
        let Some(place) = locked.own_hold(hold, owner) else {
            return Ok(Released::WasReclaimed);
        };
        let has_lost_a_lease = shard.has_leases
            && (has_expired || locked.has_lost_a_lease(hold) || shard.is_unleased(hold.index, locked.now));
        let row = place.row().index;
        let is_last_hold = shard.memory.has_no_free_hold();
        let mut transaction = shard.memory.journal().begin();
        locked.free_place(&mut transaction, hold.index, place, ending);
        shard.commit(&mut transaction)?;
        // The hold is given back, whatever is wrong with the queue; the next operation reports that.
        let _ = locked.serve_after_release(row, Some(hold.index), is_last_hold);
        if shard.set.has_lease_room {
            locked.note_release(shard.row(row));
        }
        if has_lost_a_lease {
            return Ok(Released::WasReclaimed);
        }
        Ok(Released::GivenBack)
    }
}

impl Shard<'_> {
    /// Counts, without the lock, a permit that was dropped without a settle.
    pub(crate) fn count_unsettled(&self, index: usize) {
        self.counters(index).unsettled.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts, without the lock, a request that named a limit the set does not have.
    pub(crate) fn count_unknown_name(&self) {
        self.memory
            .control()
            .unknown_names
            .fetch_add(1, Ordering::Relaxed);
    }
}

impl<'a> LockedShard<'a> {
    /// The row that a permit was taken from. If another key has that row by now, because this key was replenished or
    /// evicted, this finds another row of the same key, or makes one: what was used is charged all the same. With
    /// `needs_none`, none is made, and the absent row is returned instead.
    pub(in crate::engine) fn row_of(
        &self,
        permit: &Decision,
        needs_none: bool,
    ) -> Result<Result<Row<'a>, NoRow>, Box<Error>> {
        match self.find_row_of(permit) {
            Some(row) => Ok(Ok(row)),
            None if needs_none => Ok(Ok(self.shard.absent_row())),
            None => self.add_row(&KeyIdentity::nameless(permit.key().1), &[]),
        }
    }

    /// A row for the key of a permit, when the key has lost its own; `None` if there is no row for it.
    #[cold]
    fn row_to_charge(&self, permit: &Decision) -> Result<Option<Row<'a>>, Box<Error>> {
        let row = self.row_of(permit, false)?.ok();
        if let Some(row) = row.filter(|_| self.shard.differs_by_key) {
            // What counts as unused under the rules of `default` may count as used under those of the permit.
            self.replenish_row(row.index);
        }
        Ok(row)
    }

    /// Charges what was used beyond what was reserved. A key that lost its row also lost its tier and its own
    /// capacities, so a new row is charged as if the old one had been charged first, by the rules of the permit.
    fn charge_above(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        settling: Settling<'_>,
        above: u64,
    ) {
        let Settling {
            row,
            is_new,
            permit,
            index,
        } = settling;
        let of_permit = self.shard.rules.of_tier(permit.definition.tier).limits.get(index);
        match of_permit.filter(|_| is_new && self.shard.differs_by_key) {
            Some(of_permit) => {
                let of_permit = of_permit.by_capacity(permit.own_capacity(index));
                of_permit.charge_before(limit, row, transaction, self.now, above);
            }
            None => limit.charge(row, transaction, self.now, above),
        }
    }

    /// Finds the row as [`row_of`](Self::row_of) does, but makes none, which might cost another key its row.
    #[inline]
    fn find_row_of(&self, permit: &Decision) -> Option<Row<'a>> {
        if !self.shard.memory.is_keyed() {
            return Some(self.shard.only_row());
        }
        let (row, fingerprint) = permit.key();
        if fingerprint == Fingerprint::NONE {
            // Admitted without a row, by limits in shadow.
            return Some(self.shard.absent_row());
        }
        let row = self.shard.row(row.index);
        // The time of the decision does not matter: a permit that took nothing leaves its row to others at that very
        // instant.
        if row.is_of(fingerprint) {
            return Some(row);
        }
        self.shard.find_row_of(fingerprint)
    }

    /// Whether a settlement charges more than was reserved of any limit that the key has for itself.
    fn charges_something(&self, permit: &Decision, actual: &[(usize, u64)]) -> bool {
        actual.iter().any(|(index, used)| {
            let reserved = permit.get(*index).map_or(0, |decided| decided.cost());
            *used > reserved && !self.shard.set.is_overall(*index)
        })
    }

    /// Refunds what was not used of one limit, or charges what was used beyond the reservation.
    #[inline]
    fn settle_limit(
        &self,
        transaction: &mut Transaction<'_>,
        settling: Settling<'_>,
        used: u64,
    ) -> Option<SettledLimit> {
        let Settling {
            row, permit, index, ..
        } = settling;
        let limit = self.shard.of(row).rules.limits.get(index)?.of(row);
        let counters = self.shard.counters(index);
        let decided = permit.get(index)?;
        let reserved = decided.cost();
        let mut settled = SettledLimit {
            index,
            refunded: 0,
            overdraft: 0,
        };
        if used < reserved {
            let unused = reserved - used;
            settled.refunded = self.refund_unused(transaction, &limit, row, unused, decided, permit.origin());
            let drawn_again = match limit.credit {
                Some(_) => self.put_back(transaction, &limit, row, permit, settled.refunded),
                None => 0,
            };
            transaction.count(&counters.refunded, settled.refunded - drawn_again);
        } else if used > reserved {
            let above = used - reserved;
            self.charge_above(transaction, &limit, settling, above);
            // A budget reserves nothing, so its debit is no overdraft.
            if limit.kind == Kind::Budget {
                transaction.count(&counters.taken, above);
            } else {
                settled.overdraft = above;
                transaction.count(&counters.overdraft, above);
            }
        }
        transaction.count(&counters.settled, 1);
        Some(settled)
    }
}
