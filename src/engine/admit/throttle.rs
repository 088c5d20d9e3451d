//! What is behind the limits says that it takes nothing for a while: until then, nothing is admitted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::choices::Kind;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard, MAX_AHEAD};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::{Costs, Decision};
use crate::error::Error;
use crate::limit::Now;
use crate::shm::layout::row::Row;
use crate::units::NANOS_PER_SECOND;

/// For how long anything is throttled at most, in nanoseconds: 31 days.
const MAX_THROTTLE: u64 = 31 * 24 * 3600 * NANOS_PER_SECOND;

/// What a word says beyond this is damage. Readings of the clock may be behind the one that it was written by.
const LONGEST_SOUND: u64 = MAX_THROTTLE + MAX_AHEAD;

impl SegmentEngine {
    /// Admits nothing of the set, or of the key, for so many nanoseconds. What is throttled for longer stays so.
    pub(crate) fn throttle(&self, target: Target<'_>, wait: u64) -> Result<(), Box<Error>> {
        let mut locked = self.lock(target.shard(), LockFor::Decide, LockWait::Timeout)?;
        match locked.row_for(target.key, &Costs::default())? {
            Ok(row) => locked.throttle(row, wait),
            // A key without a row is refused as it is.
            Err(_) => Ok(()),
        }
    }

    /// As [`throttle`](Self::throttle), what a permit was taken from.
    pub(crate) fn throttle_by(
        &self,
        set: &SetEngine,
        permit: &Decision,
        wait: u64,
    ) -> Result<(), Box<Error>> {
        let mut locked = self.lock(set.shard(permit.shard()), LockFor::Decide, LockWait::Timeout)?;
        match locked.row_of(permit)? {
            Ok(row) => locked.throttle(row, wait),
            Err(_) => Ok(()),
        }
    }
}

impl<'a, Rules> Shard<'a, Rules> {
    /// The word that says until when a row is throttled.
    #[inline(always)]
    fn throttle_word(&self, row: Row<'a>) -> &'a AtomicU64 {
        row.used_at().unwrap_or(&self.memory.control().throttled_until)
    }

    /// Nanoseconds for which nothing of a row is admitted; zero unless it is throttled.
    #[inline(always)]
    pub(crate) fn throttled_for(&self, row: Row<'a>, now: Now) -> u64 {
        let until = self.throttle_word(row).load(Ordering::Relaxed);
        if until <= now.monotonic {
            return 0;
        }
        left_until(until, now)
    }

    /// Ends the throttling of a row. It can be repeated.
    pub(in crate::engine) fn end_throttling(&self, row: Row<'a>, instant: u64) {
        let word = self.throttle_word(row);
        let unthrottled = if row.used_at().is_some() { instant } else { 0 };
        if word.load(Ordering::Relaxed) > unthrottled {
            word.store(unthrottled, Ordering::Relaxed);
        }
    }
}

/// Nanoseconds until an instant that is yet to come, unless it is damage.
#[cold]
fn left_until(until: u64, now: Now) -> u64 {
    let left = until.saturating_sub(now.monotonic);
    if left <= LONGEST_SOUND { left } else { 0 }
}

impl RuledShard<'_> {
    /// Whether throttling does not concern these costs: a debit counts what was used already, and what is in shadow
    /// refuses nothing.
    #[cold]
    fn is_never_throttled(&self, costs: &Costs) -> bool {
        let is_budget = |index: usize| {
            let limit = self.limits.get(index);
            limit.is_some_and(|limit| limit.kind == Kind::Budget)
        };
        let is_debit =
            costs.iter().all(|(index, _)| is_budget(index)) && costs.iter().any(|(_, cost)| cost > 0);
        is_debit || self.is_in_shadow(costs)
    }
}

impl ShardAt<'_> {
    /// Nanoseconds for which these costs are not admitted on a row, whatever the limits say.
    #[inline(always)]
    pub(in crate::engine) fn throttles(&self, row: Row<'_>, costs: &Costs) -> u64 {
        match self.shard.throttled_for(row, self.now) {
            0 => 0,
            _ if self.shard.is_never_throttled(costs) => 0,
            wait => wait,
        }
    }
}

impl LockedShard<'_> {
    fn throttle(&mut self, row: Row<'_>, wait: u64) -> Result<(), Box<Error>> {
        if row.is_absent() {
            // Of a key that was admitted without a row, by limits in shadow.
            return Ok(());
        }
        // Not before that by any other reading of the clock, whichever this one is.
        let wait = self.engine.wait_by_any_reading(wait.min(MAX_THROTTLE));
        let until = self.now.monotonic.saturating_add(wait);
        let left = self.shard.throttled_for(row, self.now);
        if self.now.monotonic.saturating_add(left) >= until {
            return Ok(());
        }
        // What processes have drawn they spend without the lock.
        self.take_batches_back(row)?;
        let mut transaction = self.shard.memory.journal().begin();
        transaction.store(self.shard.throttle_word(row), until);
        self.shard.commit(&mut transaction)?;
        // Who is first learns how long it has to wait now: what it waited for may come back before that.
        self.serve_next(row.index)
    }
}
