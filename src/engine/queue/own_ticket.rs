//! A ticket with which this process waits.

use crate::engine::queue::deadline::Deadline;
use crate::queue::TicketReference;
use crate::shm::wake::futex::FutexValue;

/// A ticket of this process, and when to look at it again. Instants are on the boot-time clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(in crate::engine) ticket: TicketReference,
    /// Its queue: the shard, and the row there.
    pub(in crate::engine) shard: u32,
    pub(in crate::engine) row: u64,
    pub(in crate::engine) owner: u64,
    pub(in crate::engine) seen: FutexValue,
    /// When to look because of time alone: it may serve the ticket itself, or those ahead of it on whose behalf it
    /// looks. `u64::MAX` if time does not help.
    pub(in crate::engine) wake_at: u64,
    pub(in crate::engine) next_liveness_check: u64,
    /// How often to look for deaths ahead of it, in nanoseconds; `u64::MAX` if the background thread does that for
    /// all tickets.
    pub(in crate::engine) slice: u64,
    /// When the wait began, by [`SegmentEngine::wait_nanos`](crate::engine::SegmentEngine::wait_nanos).
    pub(in crate::engine) began: u64,
    pub(in crate::engine) deadline: Deadline,
}

impl Waiting {
    /// The shard of the set, and the row whose queue the ticket is in.
    pub(crate) fn queue(&self) -> (u32, u64) {
        (self.shard, self.row)
    }

    /// The participant that waits.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The ticket: its index in the shard, and its serial number.
    pub(crate) fn ticket(&self) -> TicketReference {
        self.ticket
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// Notes that a process may have died: the dead are looked for at `instant` at the latest, and then once in every
    /// slice.
    pub(in crate::engine) fn look_for_the_dead(&mut self, instant: u64, slice: u64) {
        self.next_liveness_check = self.next_liveness_check.min(instant);
        self.slice = slice;
    }

    /// When to look again, if nobody wakes it before.
    pub(crate) fn next_look(&self) -> u64 {
        self.wake_at.min(self.next_liveness_check)
    }
}
