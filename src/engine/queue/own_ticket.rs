//! A ticket that this process waits with.

use crate::engine::queue::deadline::Deadline;
use crate::queue::TicketReference;
use crate::shm::wake::futex::FutexValue;

/// A ticket of this process, and when to look at it again. All instants are on the boot-time clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(in crate::engine) ticket: TicketReference,
    /// The shard that its queue is in, and the queue.
    pub(in crate::engine) shard: u32,
    pub(in crate::engine) row: u64,
    pub(in crate::engine) owner: u64,
    pub(in crate::engine) seen: FutexValue,
    /// When time alone would serve it; the end of time where that does not help, or others are before it.
    pub(in crate::engine) wake_at: u64,
    pub(in crate::engine) next_liveness_check: u64,
    /// How often it looks after those before it; the end of time where the background thread does that for all.
    pub(in crate::engine) slice: u64,
    pub(in crate::engine) began: u64,
    pub(in crate::engine) deadline: Deadline,
}

impl Waiting {
    /// The shard of the set that the queue is in, and the queue.
    pub(crate) fn queue(&self) -> (u32, u64) {
        (self.shard, self.row)
    }

    /// The participant that waits.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The index of the ticket in its shard.
    pub(crate) fn ticket(&self) -> TicketReference {
        self.ticket
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// How often to look after those before it.
    pub(in crate::engine) fn set_slice(&mut self, slice: u64) {
        self.slice = slice;
    }

    /// A process may have died: to be looked for at `instant`, and again in slices.
    pub(in crate::engine) fn look_for_the_dead(&mut self, instant: u64, slice: u64) {
        self.next_liveness_check = self.next_liveness_check.min(instant);
        self.slice = slice;
    }

    /// When to look again, if no process says so before.
    pub(crate) fn next_look(&self) -> u64 {
        self.wake_at.min(self.next_liveness_check)
    }
}
