//! Telling who waits in line: a bell is rung under the lock, and its sleeper woken after it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::locked::{BRIEFLY, LockWait, LockedPart, NOTHING_MORE};
use super::memory::TicketPlace;
use super::segment::SegmentEngine;
use super::set::Part;
use crate::shm::clock::boot_nanos;
use crate::shm::futex;
use crate::shm::participant::ParticipantId;
use crate::shm::wake_list::{TicketPosition, WakeList};

/// In a ticket's `request`: its owner waits by the doorbell of its participant, not by the ticket's own bell.
pub(crate) const BY_DOORBELL: u64 = 1 << 16;

/// A bell that was rung, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rung<'a> {
    bell: &'a AtomicU64,
    owner: u64,
    is_doorbell: bool,
}

impl<'a> LockedPart<'a> {
    /// Tells the owner of a ticket to look. It is woken when the lock is let go of.
    pub(super) fn ring(&self, index: u64, ticket: TicketPlace<'a>) {
        let owner = ticket.owner().load(Ordering::Relaxed);
        let is_doorbell = ticket.request().load(Ordering::Relaxed) & BY_DOORBELL != 0;
        // The count also tells whoever is woken by the doorbell that it was rung for this ticket.
        futex::ring(ticket.bell());
        let bell = if is_doorbell {
            let Some((doorbell, wake_list)) = self.engine.doorbell(owner) else {
                return;
            };
            wake_list.push(TicketPosition {
                set: self.part.set.position,
                part: u64::from(self.part.index()),
                ticket: index,
            });
            futex::ring(doorbell);
            doorbell
        } else {
            ticket.bell()
        };
        let rung = Rung {
            bell,
            owner,
            is_doorbell,
        };
        if let Some(earlier) = self.rung.bell.replace(Some(rung))
            && !std::ptr::eq(earlier.bell, bell)
        {
            // Hardly ever are two to be told after one operation; the first does not wait for the second.
            futex::wake(earlier.bell);
        }
    }

    /// Takes the ring of a ticket back whose owner looks already. Whom else it was to wake, it still wakes: a doorbell
    /// may have been rung for other tickets too.
    pub(super) fn need_not_wake(&self, ticket: TicketPlace<'a>) {
        let rung = self.rung.bell.take();
        self.rung
            .bell
            .set(rung.filter(|rung| !std::ptr::eq(rung.bell, ticket.bell())));
    }
}

impl SegmentEngine {
    /// The bell of all tickets of a participant that wait by it, and the list of those that it was rung for.
    pub(crate) fn doorbell(&self, owner: u64) -> Option<(&AtomicU64, WakeList<'_>)> {
        let id = ParticipantId::from_word(owner)?;
        let table = self.membership.table();
        table.doorbell(id).zip(table.wake_list(id))
    }

    /// Makes the thread of this process look that sleeps by its doorbell.
    pub(crate) fn ring_own_doorbell(&self) {
        if let Some((doorbell, _)) = self.doorbell(self.membership.owner_so_far()) {
            futex::ring(doorbell);
            futex::wake(doorbell);
        }
    }

    /// Wakes the sleeper of a bell. Where nobody sleeps there, it has not gone to sleep yet, or it is dead: then what
    /// it was granted goes to the next, and so on, until `deadline`; zero stands for 10 ms from now.
    #[cold]
    pub(super) fn wake(&self, part: Part<'_>, rung: Rung<'_>, deadline: u64) {
        // The caller has what it came for and is not kept waiting for long.
        let wait = LockWait::Until(match deadline {
            0 | NOTHING_MORE => boot_nanos().saturating_add(BRIEFLY),
            deadline => deadline,
        });
        let mut next = Some(rung);
        while let Some(rung) = next.take() {
            let is_awake = futex::wake(rung.bell)
                || self.membership.is_current(rung.owner)
                // A thread that serves many tickets is seldom asleep: its process is not asked for too often.
                || (rung.is_doorbell && !part.reclaim_is_due());
            if is_awake || self.is_owner_alive(rung.owner) {
                return;
            }
            // What cannot be taken back now is taken back by whoever looks next.
            let _ = self.reclaim_from(part, rung.owner, wait, |locked| {
                let Some(rung) = locked.rung.bell.take() else {
                    return;
                };
                // As where two are rung for under one lock: the earlier does not wait for the later.
                if let Some(earlier) = next.replace(rung)
                    && !std::ptr::eq(earlier.bell, rung.bell)
                {
                    futex::wake(earlier.bell);
                }
            });
        }
    }

    /// Whether whoever a word names lives. A word that names no participant names nobody who does.
    pub(super) fn is_owner_alive(&self, owner: u64) -> bool {
        ParticipantId::from_word(owner).is_some_and(|id| self.membership.is_alive(id))
    }
}
