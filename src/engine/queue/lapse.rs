//! A grant that nobody collects lapses: it is undone, and its ticket is passed over until the owner looks.
//!
//! A process whose grant has lapsed, because it is stopped or its event loop is blocked, is *silent*: any of its
//! tickets that it has not looked at since is passed over when its turn comes, instead of getting a grant that would
//! have to lapse too. So a silent process delays those behind it by `collect_within` once, however many tickets it has. A
//! ticket that is passed over keeps its number, and is put back in that place when its owner looks.
//!
//! Every waiter looks at least once a second, or once in `collect_within` if that is shorter, and then sleeps until the first
//! grant lapses. So progress never depends on the process that got the grant.

use std::sync::atomic::Ordering;

use crate::engine::queue::grant::Blocked;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::queue::{self, Phase};
use crate::shm::layout::places::TicketPlace;
use crate::shm::process::participant::ParticipantId;

/// The least time that a grant is kept, in nanoseconds, even if its owner's deadline passes sooner.
const AT_LEAST: u64 = 50_000_000;

/// In place of an instant: something may already have lapsed.
const LONG_AGO: u64 = 1;

/// In place of a row: all of them.
const EVERY_ROW: u64 = u64::MAX;

/// How much later than the head of the queue a waiter looks, in nanoseconds, for each process ahead of it.
const STAGGER: u64 = 50_000_000;

/// How many of the tickets ahead of it a waiter examines to count their processes.
const MAX_COUNTED: usize = 64;

/// A waiter behind more processes than this leaves it to the others to look early.
pub(in crate::engine) const MAX_RANK: u64 = 4;

/// When a waiter looks on behalf of those ahead of it, in case their processes do not look themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookAfter {
    /// What the head of the queue waits for.
    pub(in crate::engine) first: Blocked,
    /// How many processes are ahead of it.
    pub(in crate::engine) rank: u64,
}

impl LookAfter {
    /// How much later than the head it looks, in nanoseconds.
    pub(in crate::engine) fn stagger(self) -> u64 {
        self.rank.saturating_mul(STAGGER)
    }
}

impl<Rules> Shard<'_, Rules> {
    /// When the first grant may lapse, on the segment clock; `None` if there is none. Takes no lock.
    pub(in crate::engine) fn first_lapse(&self) -> Option<u64> {
        match self.memory.control().lapse_at.load(Ordering::Relaxed) {
            0 => None,
            instant => Some(instant),
        }
    }

    /// Called after a death: the process may have died halfway through the lapsed grants.
    pub(in crate::engine) fn look_for_lapses_anew(&self) {
        if self.first_lapse().is_some() {
            self.memory.control().lapse_at.store(LONG_AGO, Ordering::Relaxed);
        }
    }
}

impl RuledShard<'_> {
    /// Whether to look for lapsed grants.
    pub(in crate::engine) fn lapse_is_due(&self, now: u64) -> bool {
        self.first_lapse().is_some_and(|first| {
            let left = first.saturating_sub(now);
            // Farther ahead than a grant is kept: damage, or noted when grants were kept longer.
            left == 0 || left > self.plan.collect_within
        })
    }

    /// When a grant lapses, on the segment clock.
    fn lapses_at(&self, ticket: TicketPlace<'_>, granted_at: u64) -> u64 {
        let time_is_up = ticket.deadline().load(Ordering::Relaxed);
        let soonest = granted_at.saturating_add(AT_LEAST);
        granted_at
            .saturating_add(self.plan.collect_within)
            .min(time_is_up.max(soonest))
    }
}

impl SegmentEngine {
    /// Whether a grant of the owner has lapsed since it last looked at this ticket.
    fn is_silent(&self, ticket: TicketPlace<'_>, owner: u64, now: u64) -> bool {
        let lapsed_at = ParticipantId::from_word(owner)
            .and_then(|id| self.membership.table().lapsed_at(id))
            .map_or(0, |word| word.load(Ordering::Relaxed));
        // An instant in the future is damage, or was read in a shard whose time is ahead.
        ticket.looked_at().load(Ordering::Relaxed) < lapsed_at && lapsed_at <= now
    }
}

impl<'a> LockedShard<'a> {
    /// Notes when a grant lapses. Called before the grant is committed.
    pub(in crate::engine) fn note_lapse(&self, ticket: TicketPlace<'_>) {
        let lapses_at = self.shard.lapses_at(ticket, self.now.monotonic);
        let known = self.shard.first_lapse();
        if known.is_none_or(|known| lapses_at < known) {
            self.set_first_lapse(Some(lapses_at));
        }
    }

    fn set_first_lapse(&self, instant: Option<u64>) {
        let word = &self.shard.memory.control().lapse_at;
        word.store(instant.unwrap_or(0), Ordering::Relaxed);
    }

    /// Undoes lapsed grants, on behalf of a request that waits, or is about to, in the queue of `row`.
    #[inline]
    pub(in crate::engine) fn lapse_if_due(&mut self, row: u64) -> Result<(), Box<Error>> {
        if self.shard.lapse_is_due(self.now.monotonic) {
            self.lapse_what_is_due(row)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn lapse_what_is_due(&mut self, row: u64) -> Result<(), Box<Error>> {
        let now = self.now.monotonic;
        // Not zero until the end, so that the next process goes on if this one dies. Nor `now`, because serving a queue
        // below calls this function again.
        let provisional = now.saturating_add(self.shard.plan.collect_within);
        self.set_first_lapse(Some(provisional));
        let mut first = None;
        let mut has_served = false;
        for index in 0..self.shard.memory.touched_tickets() {
            let state = queue::state(&QueueWords::reading(self.shard.memory), index);
            let Some(ticket) = self
                .shard
                .memory
                .ticket(index)
                .filter(|_| state.phase == Phase::Granted)
            else {
                continue;
            };
            let of_row = ticket.row().index;
            let granted_at = ticket.granted_at().load(Ordering::Relaxed);
            let mut lapses_at = self.shard.lapses_at(ticket, granted_at);
            if lapses_at <= now {
                let others_wait = of_row == row
                    || row == EVERY_ROW
                    || self.shard.set.has_overall()
                    || !self.shard.has_no_waiters(self.shard.row(of_row))
                    || self.shard.memory.has_no_free_hold();
                if others_wait {
                    self.lapse(index, ticket)?;
                    if of_row != row && row != EVERY_ROW {
                        self.serve_next(of_row)?;
                        has_served = true;
                    }
                    continue;
                }
                // Nobody else wants it: it is kept until another request comes.
                lapses_at = now.saturating_add(AT_LEAST);
            }
            first = Some(first.map_or(lapses_at, |first: u64| first.min(lapses_at)));
        }
        // Grants made in the meantime may be at places that the loop has already passed.
        if has_served {
            let noted = self.shard.first_lapse().unwrap_or(provisional);
            first = Some(first.map_or(noted, |first: u64| first.min(noted)));
        }
        self.set_first_lapse(first);
        Ok(())
    }

    /// Undoes lapsed grants in every row, on behalf of a request that was refused, and serves every queue.
    pub(in crate::engine) fn lapse_in_every_row(&mut self) -> Result<(), Box<Error>> {
        self.lapse_if_due(EVERY_ROW)?;
        self.serve_every_queue()
    }

    fn lapse(&self, index: u64, ticket: TicketPlace<'a>) -> Result<(), Box<Error>> {
        let now = self.now.monotonic;
        let owner = ticket.owner().load(Ordering::Relaxed);
        // First, because if this process dies in between, the owner's tickets are merely passed over once more.
        if let Some(word) =
            ParticipantId::from_word(owner).and_then(|id| self.engine.membership.table().lapsed_at(id))
        {
            word.store(now, Ordering::Relaxed);
        }
        let control = self.shard.memory.control();
        let is_over = ticket.is_expired(now);
        let charged = self.charged_for(ticket);
        self.change_queue(Some(&control.lapsed), |queue| {
            self.undo_grant(queue.store, ticket);
            if !is_over {
                return queue::lapse(queue, index);
            }
            queue.store.count(&control.timed_out, 1);
            self.shard.row(ticket.row().index).unpin(queue.store);
            queue::free_unlinked(queue, index)
        })?;
        self.correct_undone(ticket, charged);
        if !is_over {
            self.notify(index, ticket);
        }
        Ok(())
    }

    /// Whether a head is passed over when it is served, because its process is silent.
    pub(in crate::engine) fn is_passed_over(&self, ticket: TicketPlace<'_>) -> bool {
        let owner = ticket.owner().load(Ordering::Relaxed);
        self.engine.is_silent(ticket, owner, self.now.monotonic)
    }

    /// Passes over the head of a queue if its process is silent. Returns whether it did.
    pub(in crate::engine) fn pass_over_if_silent(
        &self,
        index: u64,
        ticket: TicketPlace<'a>,
    ) -> Result<bool, Box<Error>> {
        if !self.is_passed_over(ticket) {
            return Ok(false);
        }
        self.change_queue(None, |queue| {
            self.shard.row(ticket.row().index).pin(queue.store);
            queue::pass_over(queue, index)
        })?;
        self.order_key(ticket.row().index);
        // The owner may well look: it was another part of the process that did not collect.
        self.notify(index, ticket);
        Ok(true)
    }

    /// Puts a ticket that was passed over back in its place, because its owner looks.
    pub(in crate::engine) fn resume(&self, index: u64, ticket: TicketPlace<'_>) -> Result<(), Box<Error>> {
        self.change_queue(None, |queue| {
            self.shard.row(ticket.row().index).unpin(queue.store);
            queue::resume(queue, index)
        })?;
        self.order_key(ticket.row().index);
        Ok(())
    }

    /// Whether a waiter that is not the head looks on behalf of those ahead of it: it does in second place, and behind a
    /// ticket of another process.
    pub(in crate::engine) fn looks_after(&self, index: u64, first: Blocked) -> Option<LookAfter> {
        let queue = QueueWords::reading(self.shard.memory);
        let owner_of = |index: u64| {
            let ticket = self.shard.memory.ticket(index);
            ticket.map_or(0, |ticket| ticket.owner().load(Ordering::Relaxed))
        };
        let mut at = queue::predecessor(&queue, index)?;
        let is_second = queue::predecessor(&queue, at).is_none();
        if !is_second && owner_of(at) == owner_of(index) {
            return None;
        }
        let mut rank = 1;
        for _ in 0..MAX_COUNTED {
            let Some(before) = queue::predecessor(&queue, at) else {
                return Some(LookAfter { first, rank });
            };
            rank += u64::from(owner_of(before) != owner_of(at));
            if rank > MAX_RANK {
                break;
            }
            at = before;
        }
        None
    }
}
