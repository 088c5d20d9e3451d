//! Back to the beginning: limits replenished, counters zero. Holds stay with their holders.
//!
//! A reset changes more words than a journal holds, so it is not undone but carried to its end by whoever finds it
//! begun: its scope is stored first, then a marker in the journal word, and every step can be repeated.

use std::sync::atomic::{AtomicU64, Ordering};

use super::segment::SegmentEngine;
use super::set::Part;
use crate::error::Error;

/// What a reset covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResetScope {
    /// Bit i says that limit i is replenished.
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
    /// Replenishes limits and zeroes counters.
    pub(crate) fn reset(&self, part: Part<'_>, scope: ResetScope) -> Result<(), Box<Error>> {
        let (mut locked, _) = self.lock_and_report(part)?;
        let control = part.memory.control();
        let poisoned = &control.poisoned;
        if poisoned.load(Ordering::Relaxed) != 0 && scope.limits != part.all_limits() {
            return Err(part.poisoned());
        }
        control.reset_scope.store(scope.to_word(), Ordering::Relaxed);
        control
            .reset_instant
            .store(locked.now.monotonic, Ordering::Relaxed);
        part.memory.journal().mark_reset();
        part.carry_out_reset();
        if poisoned.load(Ordering::Relaxed) != 0 {
            self.recount(part);
            if part.is_consistent() {
                poisoned.store(0, Ordering::Relaxed);
            }
        }
        if poisoned.load(Ordering::Relaxed) == 0 {
            // The reset is done, whatever is wrong with the line: the next operation says that.
            let _ = locked.serve_next();
        }
        Ok(())
    }
}

impl Part<'_> {
    /// Carries a reset that was begun to its end. The caller holds the lock.
    pub(crate) fn carry_out_reset(&self) {
        let control = self.memory.control();
        let scope = ResetScope::from_word(control.reset_scope.load(Ordering::Relaxed));
        let instant = control.reset_instant.load(Ordering::Relaxed);
        for (index, limit) in self.limits.iter().enumerate() {
            if scope.limits & (1 << index) != 0 {
                limit.reset(instant);
            }
        }
        if scope.counters {
            for word in counter_words(self) {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.memory.journal().close();
    }
}

/// Every word that only counts.
fn counter_words(part: Part<'_>) -> impl Iterator<Item = &AtomicU64> {
    let control = part.memory.control();
    let of_set = [
        &control.admitted,
        &control.refused_rate,
        &control.refused_concurrency,
        &control.refused_budget,
        &control.refused_table_full,
        &control.refused_queue_full,
        &control.waited,
        &control.timed_out,
        &control.cancelled,
        &control.reclaimed_tickets,
        &control.expired,
        &control.queued_high_water,
        &control.settled,
        &control.reclaimed,
        &control.recoveries,
        &control.recounts,
        &control.unknown_names,
        &control.active_high_water,
    ];
    let of_limits = part.limits.iter().flat_map(|limit| {
        let counters = limit.counters();
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
        ]
    });
    of_set.into_iter().chain(&control.wait_times).chain(of_limits)
}
