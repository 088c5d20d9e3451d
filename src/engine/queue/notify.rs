//! Waking waiters: a waiter futex is advanced under the lock, and its sleeper is woken after the unlock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::shard::locked_shard::{BRIEFLY, LockWait, LockedShard, NOTHING_MORE};
use crate::engine::shard::pending_wake::{BY_PROCESS_FUTEX, PendingWake};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::shm::layout::places::TicketPlace;
use crate::shm::process::participant::ParticipantId;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex;
use crate::shm::wake::wake_list::{TicketPosition, WakeList};

impl<'a> LockedShard<'a> {
    /// Notifies the owner of a ticket, which is woken when the lock is released.
    pub(in crate::engine) fn notify(&self, index: u64, ticket: TicketPlace<'a>) {
        let owner = ticket.owner().load(Ordering::Relaxed);
        let is_process_futex = ticket.request().load(Ordering::Relaxed) & BY_PROCESS_FUTEX != 0;
        // Advanced in any case: a process that is woken through its process futex sees here which ticket it is about.
        futex::bump(ticket.waiter_futex());
        let futex = if is_process_futex {
            let Some((process_futex, wake_list)) = self.engine.process_futex(owner) else {
                return;
            };
            wake_list.push(TicketPosition {
                set: self.shard.set.position,
                shard: u64::from(self.shard.index()),
                ticket: index,
            });
            futex::bump(process_futex);
            process_futex
        } else {
            ticket.waiter_futex()
        };
        let pending_wake = PendingWake {
            futex,
            owner,
            is_process_futex,
        };
        if let Some(earlier) = self.pending_wake.replace(Some(pending_wake))
            && !std::ptr::eq(earlier.futex, futex)
        {
            // One operation hardly ever wakes two. If it does, the first is woken at once, without waiting for the
            // unlock.
            futex::wake_all(earlier.futex);
        }
    }

    /// Cancels the pending wake of a ticket whose owner is already running. That of a process futex stays, because
    /// the futex may have been advanced for other tickets too.
    pub(in crate::engine) fn cancel_wake(&self, ticket: TicketPlace<'a>) {
        let pending_wake = self.pending_wake.take();
        self.pending_wake.set(
            pending_wake.filter(|pending_wake| !std::ptr::eq(pending_wake.futex, ticket.waiter_futex())),
        );
    }
}

impl SegmentEngine {
    /// A participant's process futex, on which one thread sleeps for many tickets, and the list of the tickets that
    /// it was advanced for.
    pub(crate) fn process_futex(&self, owner: u64) -> Option<(&AtomicU64, WakeList<'_>)> {
        let id = ParticipantId::from_word(owner)?;
        let table = self.membership.table();
        table.process_futex(id).zip(table.wake_list(id))
    }

    /// Wakes the threads of all processes that sleep on their process futexes: something changed that is in none of
    /// their lists.
    pub(in crate::engine) fn wake_every_process(&self) {
        let table = self.membership.table();
        for participant in table.taken() {
            if let Some(process_futex) = table.process_futex(participant.id) {
                futex::bump(process_futex);
                futex::wake(process_futex);
            }
        }
    }

    /// Wakes the sleeper of a waiter futex. If nobody sleeps there, the owner has not gone to sleep yet, or is dead.
    /// In the latter case what it was granted goes to the next waiter, and so on, until `deadline` on the boot-time
    /// clock; zero and `NOTHING_MORE` stand for 10 ms from now.
    #[cold]
    pub(in crate::engine) fn wake(&self, shard: Shard<'_>, pending_wake: PendingWake<'_>, deadline: u64) {
        // The caller already has what it came for, and is not kept for long.
        let wait = LockWait::Until(match deadline {
            0 | NOTHING_MORE => boot_nanos().saturating_add(BRIEFLY),
            deadline => deadline,
        });
        let mut next = Some(pending_wake);
        while let Some(pending_wake) = next.take() {
            let is_awake = futex::wake_all(pending_wake.futex)
                || self.membership.is_current(pending_wake.owner)
                // A thread that serves many tickets is seldom asleep, so this does not check too often whether its
                // process lives.
                || (pending_wake.is_process_futex && !shard.reclaim_is_due());
            if is_awake || self.is_owner_alive(pending_wake.owner) {
                return;
            }
            // What cannot be taken back now is taken back by whichever process looks next.
            let _ = self.reclaim_from(shard, pending_wake.owner, wait, |locked| {
                let Some(pending_wake) = locked.pending_wake.take() else {
                    return;
                };
                // As in `notify`: the earlier does not wait for the later.
                if let Some(earlier) = next.replace(pending_wake)
                    && !std::ptr::eq(earlier.futex, pending_wake.futex)
                {
                    futex::wake_all(earlier.futex);
                }
            });
        }
    }

    /// Whether the process that an owner word names is alive; `false` if the word names no participant.
    pub(in crate::engine) fn is_owner_alive(&self, owner: u64) -> bool {
        ParticipantId::from_word(owner).is_some_and(|id| self.membership.is_alive(id))
    }
}
