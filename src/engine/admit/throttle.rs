//! Throttling: the upstream said that it accepts nothing for a while, so nothing is admitted until then.

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

/// The longest throttle, in nanoseconds: 31 days.
const MAX_THROTTLE: u64 = 31 * 24 * 3600 * NANOS_PER_SECOND;

/// A throttle that lasts longer than this is damage. The margin is for readers whose clock is behind the reading that
/// the word was computed from.
const LONGEST_SOUND: u64 = MAX_THROTTLE + MAX_AHEAD;

impl SegmentEngine {
    /// Admits nothing of the set, or of the key, for `wait` nanoseconds. A keyed set is throttled as a whole only if all
    /// keys have some limit together. A throttle that already lasts longer stays.
    pub(crate) fn throttle(&self, target: Target<'_>, wait: u64) -> Result<(), Box<Error>> {
        let mut locked = self.lock(target.shard(), LockFor::Decide, LockWait::Timeout)?;
        match locked.row_for(target.key, &Costs::default())? {
            Ok(row) => locked.throttle(row, wait),
            // A key that can get no row is refused anyway.
            Err(_) => Ok(()),
        }
    }

    /// [Throttles](Self::throttle) the set or key that a permit was taken from: the set if all keys have some limit
    /// together.
    pub(crate) fn throttle_by(
        &self,
        set: &SetEngine,
        permit: &Decision,
        wait: u64,
    ) -> Result<(), Box<Error>> {
        let mut locked = self.lock(set.shard(permit.shard()), LockFor::Decide, LockWait::Timeout)?;
        // All keys share the upstream, so all of them are throttled.
        let is_overall = set.has_overall();
        match locked.row_of(permit, is_overall)? {
            Ok(_) if is_overall => {
                let set = locked.shard.absent_row();
                locked.throttle(set, wait)
            }
            Ok(row) => locked.throttle(row, wait),
            Err(_) => Ok(()),
        }
    }
}

impl<'a, Rules> Shard<'a, Rules> {
    /// The word that says until when a row is throttled. The row of a key that has none stands for all keys together.
    #[inline(always)]
    fn throttle_word(&self, row: Row<'a>) -> &'a AtomicU64 {
        row.used_at().unwrap_or(&self.memory.control().throttled_until)
    }

    /// Nanoseconds for which a row still admits nothing; zero unless it is throttled, or all keys are.
    #[inline(always)]
    pub(crate) fn throttled_for(&self, row: Row<'a>, now: Now) -> u64 {
        let of_row = self.row_throttled_for(row, now);
        if !self.set.has_overall() {
            return of_row;
        }
        of_row.max(self.row_throttled_for(self.absent_row(), now))
    }

    /// Nanoseconds for which a row still admits nothing, whether or not all keys are throttled.
    #[inline(always)]
    pub(crate) fn row_throttled_for(&self, row: Row<'a>, now: Now) -> u64 {
        let until = self.throttle_word(row).load(Ordering::Relaxed);
        if until <= now.monotonic {
            return 0;
        }
        left_until(until, now)
    }

    /// Ends the throttling of a row. Idempotent, because an unfinished reset is repeated.
    pub(in crate::engine) fn end_throttling(&self, row: Row<'a>, instant: u64) {
        let word = self.throttle_word(row);
        let unthrottled = if row.used_at().is_some() { instant } else { 0 };
        if word.load(Ordering::Relaxed) > unthrottled {
            word.store(unthrottled, Ordering::Relaxed);
        }
    }

    /// Ends the throttling of all keys together.
    pub(in crate::engine) fn end_throttling_of_set(&self) {
        self.memory.control().throttled_until.store(0, Ordering::Relaxed);
    }
}

/// Nanoseconds until a later instant; zero if the instant is damage.
#[cold]
fn left_until(until: u64, now: Now) -> u64 {
    let left = until.saturating_sub(now.monotonic);
    if left <= LONGEST_SOUND { left } else { 0 }
}

impl RuledShard<'_> {
    /// Whether throttling does not apply to these costs: a debit counts what was already used, and limits in shadow
    /// refuse nothing.
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
        self.bites(self.shard.throttled_for(row, self.now), costs)
    }

    /// The same, whether or not all keys are throttled.
    pub(in crate::engine) fn throttles_by_row(&self, row: Row<'_>, costs: &Costs) -> u64 {
        self.bites(self.shard.row_throttled_for(row, self.now), costs)
    }

    /// What is left of a throttle for these costs: nothing if they are never throttled.
    #[inline(always)]
    fn bites(&self, left: u64, costs: &Costs) -> u64 {
        match left {
            0 => 0,
            _ if self.shard.is_never_throttled(costs) => 0,
            wait => wait,
        }
    }
}

impl LockedShard<'_> {
    fn throttle(&mut self, row: Row<'_>, wait: u64) -> Result<(), Box<Error>> {
        if row.is_absent() && !self.shard.set.has_overall() {
            // The key was admitted without a row, by limits in shadow.
            return Ok(());
        }
        // Long enough for every other reading of the clock, too: another may be ahead of this one.
        let wait = self.engine.wait_by_any_reading(wait.min(MAX_THROTTLE));
        let until = self.now.monotonic.saturating_add(wait);
        let left = self.shard.row_throttled_for(row, self.now);
        if self.now.monotonic.saturating_add(left) >= until {
            return Ok(());
        }
        // Processes spend their batches without the lock, so they would not notice.
        self.take_batches_back(row)?;
        let mut transaction = self.shard.memory.journal().begin();
        transaction.store(self.shard.throttle_word(row), until);
        self.shard.commit(&mut transaction)?;
        // The first waiter has to work out its wait again: what it waits for may be available before the throttle ends.
        self.serve_next(row.index)
    }
}
