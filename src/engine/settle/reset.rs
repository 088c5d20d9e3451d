//! Back to the beginning: limits are replenished and counters zeroed. Holds stay with their holders.
//!
//! A reset changes more words than a journal holds, so it is not undone, but completed by whoever finds it begun. Its
//! scope is stored first, then a marker in the journal word, and every step can be repeated.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::recover::repairs::Extent;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::error::Error;
use crate::shm::layout::row::Row;

/// What a reset covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResetScope {
    /// Bit i: limit i is replenished.
    pub(crate) limits: u32,
    pub(crate) counters: bool,
}

impl ResetScope {
    const COUNTERS_BIT: u64 = 1 << 63;

    fn to_word(self) -> u64 {
        u64::from(self.limits) | if self.counters { Self::COUNTERS_BIT } else { 0 }
    }

    fn from_word(word: u64) -> Self {
        Self {
            limits: word as u32,
            counters: word & Self::COUNTERS_BIT != 0,
        }
    }
}

impl SegmentEngine {
    /// Replenishes limits and zeroes counters. A poisoned shard accepts only a reset of all limits, and is then sound
    /// again if its counts agree.
    pub(crate) fn reset(&self, shard: Shard<'_>, scope: ResetScope) -> Result<(), Box<Error>> {
        let mut locked = self.lock(shard, LockFor::Repair, LockWait::Timeout)?;
        let shard = locked.shard;
        let control = shard.memory.control();
        let poisoned = &control.poisoned;
        if poisoned.load(Ordering::Relaxed) != 0 && scope.limits != shard.set.all_limits() {
            return Err(shard.poisoned());
        }
        locked.begin_and_carry_out_reset(scope, 0);
        if poisoned.load(Ordering::Relaxed) != 0 {
            locked.rebuild();
            if shard.is_consistent(Extent::Whole) {
                poisoned.store(0, Ordering::Relaxed);
            }
        }
        if poisoned.load(Ordering::Relaxed) == 0 {
            // The reset is done, whatever is wrong with the queue; the next operation reports that.
            let _ = locked.serve_every_queue();
        }
        Ok(())
    }

    /// Replenishes limits of one key. Returns whether it has a row.
    pub(crate) fn reset_key(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        limits: u32,
    ) -> Result<bool, Box<Error>> {
        let mut locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
        let Some(row) = locked.shard.find_row(Some(key)) else {
            return Ok(false);
        };
        let scope = ResetScope {
            limits,
            counters: false,
        };
        locked.begin_and_carry_out_reset(scope, row.index + 1);
        // The reset is done, whatever is wrong with the queue; the next operation reports that.
        let _ = locked.serve_next(row.index);
        Ok(true)
    }
}

impl LockedShard<'_> {
    /// Replenishes all limits of a row.
    pub(in crate::engine) fn replenish_row(&self, index: u64) {
        let scope = ResetScope {
            limits: self.shard.set.all_limits(),
            counters: false,
        };
        self.begin_and_carry_out_reset(scope, index + 1);
    }

    /// Replenishes limits of the row before `end_row`, or of all rows if that is zero.
    pub(in crate::engine) fn begin_and_carry_out_reset(&self, scope: ResetScope, end_row: u64) {
        let control = self.shard.memory.control();
        control.reset_scope.store(scope.to_word(), Ordering::Relaxed);
        control.reset_instant.store(self.now.monotonic, Ordering::Relaxed);
        // Stored with the generation that the row gets, so that a repetition after a death gives it the same one.
        let row = end_row.checked_sub(1).map(|index| self.shard.row(index));
        let generation = row
            .and_then(Row::next_generation)
            .map_or(0, |(_, generation)| generation);
        control
            .reset_row
            .store(end_row | generation << 32, Ordering::Relaxed);
        self.shard.memory.journal().mark_reset();
        self.carry_out_reset();
    }

    /// Completes a reset that was begun.
    pub(in crate::engine) fn carry_out_reset(&self) {
        let shard = self.shard;
        let control = shard.memory.control();
        let scope = ResetScope::from_word(control.reset_scope.load(Ordering::Relaxed));
        let instant = control.reset_instant.load(Ordering::Relaxed);
        let limits = || {
            shard
                .limits
                .iter()
                .filter(|limit| scope.limits & (1 << limit.index) != 0)
        };
        let reset_row = control.reset_row.load(Ordering::Relaxed);
        match (reset_row & u64::from(u32::MAX)).checked_sub(1) {
            Some(index) => {
                let row = shard.row(index);
                // Overall limits do not belong to this key.
                for limit in limits().filter(|limit| !limit.is_overall()) {
                    limit.reset(row);
                }
                if scope.limits != 0 {
                    shard.end_throttling(row, instant);
                    self.void_batches(Some(index), scope.counters);
                }
                if let Some(generation) = row.generation() {
                    let word = row.generation_word((reset_row >> 32) as u32);
                    generation.store(word, Ordering::Relaxed);
                }
            }
            None => {
                for limit in limits() {
                    let reset_at = &shard.counters(limit.index).reset_at;
                    // Zero means no reset. What was decided at this very instant is void, whether before the reset or
                    // after it.
                    reset_at.store(instant.max(1), Ordering::Relaxed);
                    if limit.is_overall() {
                        limit.reset(shard.absent_row());
                        continue;
                    }
                    for row in shard.memory.all_rows() {
                        limit.reset(row);
                    }
                }
                if scope.limits != 0 {
                    for row in shard.memory.all_rows() {
                        shard.end_throttling(row, instant);
                    }
                    shard.end_throttling_of_set();
                    self.void_batches(None, scope.counters);
                }
            }
        }
        if scope.counters {
            for word in counter_words(&shard) {
                word.store(0, Ordering::Relaxed);
            }
            for counts in shard.memory.all_rows().filter_map(Row::counts) {
                counts.store(0, Ordering::Relaxed);
            }
        }
        shard.memory.journal().close();
    }
}

/// Every word that is merely a counter.
fn counter_words<'a>(shard: &RuledShard<'a>) -> impl Iterator<Item = &'a AtomicU64> {
    let memory = shard.memory;
    let control = memory.control();
    let of_set = [
        &control.admitted,
        &control.refused_rate,
        &control.refused_concurrency,
        &control.refused_budget,
        &control.refused_holds_full,
        &control.refused_queue_full,
        &control.refused_throttled,
        &control.refused_lease,
        &control.refused_lease_pending,
        &control.refused_store_out,
        &control.waited,
        &control.timed_out,
        &control.cancelled,
        &control.reclaimed_tickets,
        &control.lapsed,
        &control.expired,
        &control.queued_high_water,
        &control.settled,
        &control.reclaimed,
        &control.recoveries,
        &control.rebuilds,
        &control.refused_table_full,
        &control.evicted_unused,
        &control.evicted_in_use,
        &control.lock_waits,
        &control.unknown_names,
        &control.active_high_water,
        &control.wait_time,
    ];
    let of_limits = shard.limits.iter().flat_map(|limit| {
        let counters = memory.counters(limit.index);
        [
            &counters.admitted,
            &counters.taken,
            &counters.refused,
            &counters.settled,
            &counters.refunded,
            &counters.overdraft,
            &counters.unsettled,
            &counters.reclaimed,
            &counters.high_water,
            &counters.near,
            &counters.would_refuse,
            &counters.failed,
        ]
    });
    of_set.into_iter().chain(&control.wait_times).chain(of_limits)
}
