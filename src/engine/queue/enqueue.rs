//! Taking a ticket: the beginning of a wait.

use std::sync::atomic::Ordering;

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::queue::deaths::{SHORT_WAIT, UNWATCHED_SLICE};
use crate::engine::queue::grant::{Blocked, Served};
use crate::engine::queue::own_ticket::Waiting;
use crate::engine::queue::waiting::{WaitAs, WaitBy, WaitStart};
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::resolution::Cause;
use crate::error::Error;
use crate::queue::{self, TicketReference};
use crate::shm::layout::row::Row;
use crate::shm::probes;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex::{self, FutexValue};

/// When no more tickets than this are free, a key that shares them gets one only if it has fewer than are free. This
/// bounds what is counted under the lock.
const SHARED_TICKETS: u64 = 1_024;

/// A ticket that was just taken.
struct Enqueued<'a> {
    ticket: TicketReference,
    row: Row<'a>,
    /// The result of serving the queue just before.
    served: Served,
}

impl SegmentEngine {
    /// Takes everything that `costs` names, or else a ticket.
    pub(crate) fn begin_waiting(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        how: WaitAs,
    ) -> Result<WaitStart, Box<Error>> {
        if self.spend(target, costs, decision)? {
            return Ok(WaitStart::Decided(true));
        }
        decision.owner = self.membership.owner()?;
        let answer = self.decide(target, costs, decision, Attempt::BeforeWaiting)?;
        self.begin_waiting_after(answer, target, costs, decision, how)
    }

    pub(super) fn begin_waiting_after(
        &self,
        answer: Answer,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        how: WaitAs,
    ) -> Result<WaitStart, Box<Error>> {
        let shard = target.shard();
        match answer {
            Answer::Admitted => return Ok(WaitStart::Decided(true)),
            Answer::Refused => return Ok(WaitStart::Decided(false)),
            Answer::Impossible => return Err(shard.never_admissible(decision.impossible())),
            Answer::RetryAfterReclaim => {
                self.reclaim_if_due(shard, LockWait::Timeout)?;
            }
            Answer::MustWait | Answer::AwaitsLease => {}
        }
        let mut start = self.take_ticket(target, costs, decision, how, Attempt::First)?;
        if start.is_none() {
            // All tickets are taken, perhaps by dead processes.
            self.reclaim_if_due(shard, LockWait::Timeout)?;
            start = self.take_ticket(target, costs, decision, how, Attempt::Last)?;
        }
        if let Some(WaitStart::Waiting(_)) = &start {
            probes::queued::fire(|| (self.path(), &shard.set.name));
        }
        Ok(start.unwrap_or(WaitStart::Decided(false)))
    }

    /// Takes everything if nobody waits and the limits allow it by now; otherwise takes a ticket. `None` if all
    /// tickets are taken, and it is time to check whether dead processes hold some of them.
    fn take_ticket(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        how: WaitAs,
        attempt: Attempt,
    ) -> Result<Option<WaitStart>, Box<Error>> {
        // Read again: a process that had lost its slot has a new one by now.
        decision.owner = self.membership.owner()?;
        let mut locked = self.lock(target.shard(), LockFor::Decide, LockWait::Timeout)?;
        let shard = locked.shard;
        let Enqueued { ticket, row, served } =
            match locked.decide_or_enqueue(target, costs, decision, how, attempt)? {
                Ok(enqueued) => enqueued,
                Err(Answer::RetryAfterReclaim) => return Ok(None),
                Err(Answer::Impossible) => {
                    drop(locked);
                    return Err(shard.unruled().never_admissible(decision.impossible()));
                }
                Err(answer) => return Ok(Some(WaitStart::Decided(answer == Answer::Admitted))),
            };
        let now = boot_nanos();
        let mut waiting = Waiting {
            ticket,
            shard: shard.index(),
            row: row.index,
            owner: decision.owner,
            seen: FutexValue::default(),
            wake_at: u64::MAX,
            next_liveness_check: u64::MAX,
            slice: u64::MAX,
            began: self.wait_nanos(),
            deadline: how.deadline,
        };
        if how.wait_by == WaitBy::WaiterFutex {
            waiting.slice = UNWATCHED_SLICE;
            waiting.next_liveness_check = now.saturating_add(SHORT_WAIT);
        }
        if let Some(place) = shard.memory.ticket(ticket.index) {
            waiting.seen = futex::value(place.waiter_futex());
        }
        let is_head = queue::head(&QueueWords::reading(shard.memory), row.index) == Ok(Some(ticket.index));
        if let Some(looks_after) = locked.behind_in_order(ticket.index) {
            let instant = locked.now.monotonic;
            drop(locked);
            self.set_wake_behind(shard, &mut waiting, looks_after, instant);
        } else if is_head {
            let (blocked, instant) = (locked.blocked(row, costs), locked.now.monotonic);
            drop(locked);
            self.set_wake_at(shard, &mut waiting, blocked, instant);
        } else {
            let first = match served {
                Served::Blocked(blocked) => blocked,
                Served::Granted | Served::NoWaiters => Blocked::default(),
            };
            let (looks_after, instant) = (locked.looks_after(ticket.index, first), locked.now.monotonic);
            drop(locked);
            self.set_wake_behind(shard, &mut waiting, looks_after, instant);
        }
        Ok(Some(WaitStart::Waiting(waiting)))
    }
}

impl<'a> LockedShard<'a> {
    /// Takes a ticket. Returns an answer instead if nobody waits and the limits admit the request by now, if it can
    /// never be met, if its key gets no row, or if all tickets are taken.
    fn decide_or_enqueue(
        &mut self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        how: WaitAs,
        attempt: Attempt,
    ) -> Result<Result<Enqueued<'a>, Answer>, Box<Error>> {
        let row = match self.row_for(target.key, costs)? {
            Ok(row) => row,
            Err(no_row) => return self.without_a_row(no_row, costs, decision, attempt).map(Err),
        };
        if target.set.batches.is_some() {
            // Before it waits, because requests admitted from what others have drawn would overtake it.
            self.take_batches_back(row)?;
        }
        self.lapse_if_due(row.index)?;
        let served = self.serve_head(row.index)?;
        if !self.is_behind_others(row, costs) {
            let answer = self.take_or_refuse(row, costs, decision, Attempt::Waiting)?;
            if matches!(answer, Answer::Admitted | Answer::Impossible) {
                return Ok(Err(answer));
            }
        }
        let ticket = if self.has_its_share_of_tickets(row) {
            None
        } else {
            self.enqueue(row, costs, decision.owner, how)?
        };
        match ticket {
            Some(ticket) => {
                self.order_key(row.index);
                Ok(Ok(Enqueued { ticket, row, served }))
            }
            None => self
                .refuse(row.into(), costs, Cause::QueueFull(None), decision, attempt)
                .map(Err),
        }
    }

    /// Whether a key that shares tickets with others has as many of them as are free, if no more than [`SHARED_TICKETS`] are.
    fn has_its_share_of_tickets(&self, row: Row<'_>) -> bool {
        let memory = self.shard.memory;
        let queued = memory.control().queued.load(Ordering::Relaxed);
        let free = memory.ticket_capacity().saturating_sub(queued);
        // No key has more tickets than are queued altogether. More than a few are not counted under the lock.
        if !self.shard.set.has_overall() || queued < free || free > SHARED_TICKETS {
            return false;
        }
        let queue = QueueWords::reading(memory);
        let mut next = queue::head(&queue, row.index).ok().flatten();
        for _ in 0..free {
            let Some(index) = next else { return false };
            next = queue::successor(&queue, index);
        }
        true
    }

    /// Takes a ticket at the end of the queue; `None` if all are taken.
    fn enqueue(
        &self,
        row: Row<'_>,
        costs: &Costs,
        owner: u64,
        how: WaitAs,
    ) -> Result<Option<TicketReference>, Box<Error>> {
        self.change_queue(None, |queue| {
            let Some(free) = queue::find_free(queue)? else {
                return Ok(None);
            };
            if let Some(place) = self.shard.memory.ticket(free.index) {
                let by_process_futex = how.wait_by == WaitBy::ProcessFutex;
                place.write_request(row, costs, by_process_futex, self.now.monotonic, how.deadline);
            }
            queue::enqueue(queue, free, owner).map(Some)
        })
    }
}
