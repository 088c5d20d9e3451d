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
use crate::shm::time::virtual_clock::VirtualClock;
use crate::shm::time::virtual_waits::ServedBy;
use crate::shm::wake::futex;

/// The shortest pause between two looks for lapsed grants, in nanoseconds.
const SHORTEST_PAUSE: u64 = 1_000_000;

/// How often waiters check whether a virtual clock has moved, in nanoseconds: more often if time alone serves them.
const SHORT_LOOK: u64 = 1_000_000;
const LONG_LOOK: u64 = 5_000_000;

/// When time alone serves a head that was found blocked at `instant`, on the segment clock; `u64::MAX` if it does not.
fn turn(blocked: Blocked, instant: u64) -> u64 {
    match blocked.wait {
        0 => u64::MAX,
        wait => instant.saturating_add(wait),
    }
}

/// An address that no other wait has.
fn address_of(shard: Shard<'_>, waiting: &Waiting) -> Option<usize> {
    let place = shard.memory.ticket(waiting.ticket.index)?;
    Some(std::ptr::from_ref(place.waiter_futex()).addr())
}

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
        if let Some(clock) = self.clock.as_virtual() {
            self.set_wake_at_by(clock, shard, waiting, blocked, instant);
            return;
        }
        let now = boot_nanos();
        waiting.wake_at = self.boot_instant(turn(blocked, instant));
        let is_new = now < waiting.began.saturating_add(SHORT_WAIT);
        let slice = match blocked.by_others {
            _ if waiting.slice == u64::MAX => u64::MAX,
            true if is_new => SHORT_WAIT,
            true => waiting.slice,
            false => WATCHED_SLICE,
        };
        let mut liveness_check = now.saturating_add(slice);
        if blocked.by_others && shard.has_leases {
            // An expired lease is found only by looking, but not too often.
            let earliest = self.earliest_expiry(shard).max(shard.next_reclaim());
            liveness_check = liveness_check.min(earliest);
        }
        if let Some(lapse) = shard.first_lapse() {
            liveness_check = liveness_check.min(self.lapse_on_boot_clock(lapse, now));
        }
        waiting.next_liveness_check = liveness_check;
    }

    /// The same by a virtual clock.
    fn set_wake_at_by(
        &self,
        clock: &VirtualClock,
        shard: RuledShard<'_>,
        waiting: &mut Waiting,
        blocked: Blocked,
        instant: u64,
    ) {
        let turn = turn(blocked, instant);
        // What others give back helps only a request that time does not hold back.
        let served_by = if blocked.by_others && turn == u64::MAX {
            ServedBy::Others
        } else {
            ServedBy::TimeAlone
        };
        let expiry = if blocked.by_others && shard.has_leases {
            shard.first_expiry()
        } else {
            u64::MAX
        };
        let look = self.sleep_by(clock, shard, waiting, turn.min(expiry), served_by);
        waiting.wake_at = look;
        waiting.next_liveness_check = match waiting.slice {
            // An expired lease is found only by looking for it.
            _ if expiry <= clock.nanos() => look,
            u64::MAX => u64::MAX,
            _ => boot_nanos().saturating_add(UNWATCHED_SLICE),
        };
    }

    /// Sleeps by a virtual clock until `until`, or until the ticket needs a look for another reason. Returns when that
    /// is, in boot time: at once if this moves the clock there, and otherwise after a pause, because nobody can predict
    /// when another wait, or the program, moves the clock.
    fn sleep_by(
        &self,
        clock: &VirtualClock,
        shard: RuledShard<'_>,
        waiting: &Waiting,
        until: u64,
        served_by: ServedBy,
    ) -> u64 {
        let lapse = shard.first_lapse().unwrap_or(u64::MAX);
        let until = until.min(lapse).min(waiting.deadline.on_segment_clock());
        let was_due = until <= clock.nanos();
        let pause = match served_by {
            _ if clock.stands_still() => UNWATCHED_SLICE,
            ServedBy::TimeAlone => SHORT_LOOK,
            ServedBy::Others => LONG_LOOK,
        };
        match address_of(shard.unruled(), waiting) {
            Some(wait) if clock.sleep(wait, until, served_by) && !was_due => 0,
            _ if until == u64::MAX => u64::MAX,
            _ => boot_nanos().saturating_add(pause),
        }
    }

    /// Whether the owner of a ticket sleeps by a virtual clock, and that clock has reached the instant at which it
    /// wakes.
    pub(super) fn is_due_by_virtual_clock(&self, shard: Shard<'_>, waiting: &Waiting) -> bool {
        let clock = self.clock.as_virtual();
        clock.is_some_and(|clock| address_of(shard, waiting).is_some_and(|wait| clock.is_due(wait)))
    }

    /// Notes that a ticket no longer waits.
    pub(super) fn end_sleep(&self, shard: Shard<'_>, waiting: &Waiting) {
        if let Some(clock) = self.clock.as_virtual()
            && let Some(wait) = address_of(shard, waiting)
        {
            clock.end_sleep(wait);
        }
    }

    /// When to look for a grant that lapses at `lapse`, on the segment clock. There is a pause between two looks,
    /// because many grants may lapse one after another.
    fn lapse_on_boot_clock(&self, lapse: u64, now: u64) -> u64 {
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
        if let Some(clock) = self.clock.as_virtual() {
            let turn = looks_after.map_or(u64::MAX, |looks_after| turn(looks_after.first, instant));
            let look = self.sleep_by(clock, shard, waiting, turn, ServedBy::Others);
            // The head may be granted what it waits for at any time, and not collect it.
            let unknown = match looks_after {
                Some(_) => now.saturating_add(UNWATCHED_SLICE),
                None => u64::MAX,
            };
            waiting.wake_at = look.min(unknown);
            return;
        }
        waiting.wake_at = match looks_after {
            None => u64::MAX,
            Some(looks_after) => {
                let lapse = shard
                    .first_lapse()
                    .map_or(u64::MAX, |lapse| self.lapse_on_boot_clock(lapse, now));
                let turn = self.boot_instant(turn(looks_after.first, instant));
                // The head may also be granted what it waits for at any other time, and not collect it.
                let unknown = now.saturating_add(WATCHED_SLICE.min(shard.plan.collect_within));
                lapse.min(turn).saturating_add(looks_after.stagger()).min(unknown)
            }
        };
    }

    /// Looks for deaths ahead of a ticket, if that is due: a dead process cannot be woken, and wakes nobody.
    pub(crate) fn check_liveness_if_due(
        &self,
        shard: Shard<'_>,
        waiting: &mut Waiting,
        wait: LockWait,
    ) -> Result<(), Box<Error>> {
        let now = boot_nanos();
        // Whoever moves a virtual clock to the instant at which a lease expires looks once.
        let lease_is_over = self.clock.as_virtual().is_some_and(|clock| {
            let shard = shard.by_its_definition();
            shard.has_leases && shard.first_expiry() <= clock.nanos()
        });
        if now < waiting.next_liveness_check && !lease_is_over {
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
