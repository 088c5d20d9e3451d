//! When a waiter looks again: when time alone may serve it, when it looks on behalf of others, and every so often.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::queue::deaths::{SHORT_WAIT, UNWATCHED_SLICE, WATCHED_SLICE};
use crate::engine::queue::grant::Blocked;
use crate::engine::queue::lapse::LookAfter;
use crate::engine::queue::own_ticket::Waiting;
use crate::engine::shard::locked_shard::LockWait;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::queue;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex;

/// The shortest pause between two looks for lapsed grants, in nanoseconds.
const SHORTEST_PAUSE: u64 = 1_000_000;

impl SegmentEngine {
    /// Sleeps until it is woken, the next look is due, or the deadline has come.
    pub(super) fn sleep(&self, shard: Shard<'_>, waiting: &Waiting) {
        let Some(place) = shard.memory.ticket(waiting.ticket.index) else {
            return;
        };
        let until = waiting.next_look().min(waiting.deadline.on_boot_clock());
        let left = until.saturating_sub(boot_nanos());
        if left > 0 {
            futex::wait(place.waiter_futex(), waiting.seen, Duration::from_nanos(left));
        }
    }

    /// Schedules the next look of a queue's head, which was found blocked at `instant` on the segment clock. Called
    /// without the lock, because there may be many leases to read.
    pub(super) fn set_wake_at(
        &self,
        shard: RuledShard<'_>,
        waiting: &mut Waiting,
        blocked: Blocked,
        instant: u64,
    ) {
        let now = boot_nanos();
        // Nobody can predict when a virtual clock reaches an instant, so it is checked at intervals.
        let is_by_virtual_clock =
            (blocked.wait > 0 || waiting.deadline.is_finite()) && self.clock.is_virtual();
        waiting.wake_at = match blocked.wait {
            0 => u64::MAX,
            _ if is_by_virtual_clock => u64::MAX,
            wait => self.boot_instant(instant.saturating_add(wait)),
        };
        let is_new = now < waiting.began.saturating_add(SHORT_WAIT);
        let slice = match blocked.by_others {
            _ if is_by_virtual_clock => UNWATCHED_SLICE,
            _ if waiting.slice == u64::MAX => u64::MAX,
            true if is_new => SHORT_WAIT,
            true => waiting.slice,
            false => WATCHED_SLICE,
        };
        let mut liveness_check = now.saturating_add(slice);
        if blocked.by_others && shard.has_leases {
            // An expired lease is found only by looking, and the looks are kept apart.
            let earliest = self.earliest_expiry(shard).max(shard.next_reclaim());
            liveness_check = liveness_check.min(earliest);
        }
        if let Some(lapse) = shard.first_lapse() {
            liveness_check = liveness_check.min(self.lapse_on_boot_clock(lapse, now));
        }
        waiting.next_liveness_check = liveness_check;
    }

    /// When to look for a grant that lapses at `lapse`, on the segment clock. Looks are kept apart, because many
    /// grants may lapse one after another.
    fn lapse_on_boot_clock(&self, lapse: u64, now: u64) -> u64 {
        if self.clock.is_virtual() {
            return now.saturating_add(UNWATCHED_SLICE);
        }
        self.boot_instant(lapse).max(now.saturating_add(SHORTEST_PAUSE))
    }

    /// Schedules the next look of a waiter that has others ahead of it.
    pub(super) fn set_wake_behind(
        &self,
        shard: RuledShard<'_>,
        waiting: &mut Waiting,
        looks_after: Option<LookAfter>,
        instant: u64,
    ) {
        let now = boot_nanos();
        let is_by_virtual_clock =
            self.clock.is_virtual() && (waiting.deadline.is_finite() || looks_after.is_some());
        waiting.wake_at = match looks_after {
            _ if is_by_virtual_clock => now.saturating_add(UNWATCHED_SLICE),
            None => u64::MAX,
            Some(looks_after) => {
                let lapse = shard
                    .first_lapse()
                    .map_or(u64::MAX, |lapse| self.lapse_on_boot_clock(lapse, now));
                let turn = match looks_after.first.wait {
                    0 => u64::MAX,
                    wait => self.boot_instant(instant.saturating_add(wait)),
                };
                // The head may also be granted what it waits for at any other time, and not collect it.
                let unknown = now.saturating_add(WATCHED_SLICE.min(shard.plan.collect_within));
                lapse.min(turn).saturating_add(looks_after.stagger()).min(unknown)
            }
        };
    }

    /// Looks for deaths ahead of a ticket, if a look is due: a dead process cannot be woken, and wakes nobody.
    pub(crate) fn check_liveness_if_due(
        &self,
        shard: Shard<'_>,
        waiting: &mut Waiting,
        wait: LockWait,
    ) -> Result<(), Box<Error>> {
        let now = boot_nanos();
        if now < waiting.next_liveness_check {
            return Ok(());
        }
        waiting.next_liveness_check = now.saturating_add(waiting.slice);
        // Each waiter watches the one ahead of it, and the head watches the holders. Every dead waiter leaves the queue, so
        // the loop ends; if one does not, the queue is damaged, and the next look repairs it.
        let mut last = None;
        loop {
            let queue = QueueWords::reading(shard.memory);
            let before = queue::predecessor(&queue, waiting.ticket.index);
            if before.is_some() && before == last {
                return Ok(());
            }
            last = before;
            let owner = before
                .and_then(|before| shard.memory.ticket(before))
                .map(|before| before.owner().load(Ordering::Relaxed));
            match owner {
                Some(owner) if self.is_owner_alive(owner) => return Ok(()),
                Some(owner) => self.reclaim_from(shard, owner, wait, |_| {})?,
                None => {
                    if shard.reclaim_is_due() {
                        self.reclaim_if_due(shard, wait)?;
                    } else {
                        // Another thread looked a moment ago, but things may have changed since.
                        waiting.next_liveness_check = waiting.next_liveness_check.min(shard.next_reclaim());
                    }
                    return Ok(());
                }
            };
        }
    }
}
