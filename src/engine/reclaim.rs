//! Giving back what the dead held or waited for, and what was held for longer than its lease. Probing who is dead
//! happens outside the lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::hold::Ending;
use super::locked::LockedPart;
use super::memory::HoldPlace;
use super::plan::Kind;
use super::segment::SegmentEngine;
use super::set::{Part, RuledPart};
use crate::error::Error;
use crate::queue::{Phase, TicketState};
use crate::shm::clock::boot_nanos;
use crate::shm::journal::Transaction;

/// The shortest time between two looks for the dead by one process.
const SHORTEST_INTERVAL: u64 = 1_000_000;

/// After this long another thread may look although the first has not come to an end.
const LONGEST_LOOK: u64 = 1_000_000_000;

/// A process spends at most one part in this many of its time on looking.
const SHARE_OF_TIME: u64 = 20;

/// Holds or tickets given back under one hold of the lock.
const BATCH: usize = 64;

impl<Rules> Part<'_, Rules> {
    /// Whether this process may look for dead holders again.
    pub(crate) fn reclaim_is_due(&self) -> bool {
        boot_nanos() >= self.next_reclaim()
    }

    /// When this process may look for dead holders again, on the boot-time clock.
    pub(crate) fn next_reclaim(&self) -> u64 {
        self.memory.next_probe.load(Ordering::Relaxed)
    }

    /// Who holds something.
    pub(super) fn holders(&self) -> impl Iterator<Item = u64> {
        (0..self.memory.touched_holds())
            .filter_map(|index| self.memory.hold(index))
            .map(|hold| hold.owner().load(Ordering::Relaxed))
            .filter(|owner| *owner != 0)
    }

    /// Who owns something: holds and tickets. Zero where a ticket was given up.
    fn owners(&self) -> HashSet<u64> {
        let holders = self.holders();
        let waiters = (0..self.memory.touched_tickets())
            .filter_map(|index| self.memory.ticket(index))
            .filter(|ticket| {
                TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase != Phase::Free
            })
            .map(|ticket| ticket.owner().load(Ordering::Relaxed));
        holders.chain(waiters).collect()
    }

    /// Whether the hold at `index` is the owner's.
    fn is_hold_of(&self, index: u64, owner: u64) -> bool {
        owner != 0
            && self
                .memory
                .hold(index)
                .is_some_and(|hold| hold.owner().load(Ordering::Relaxed) == owner)
    }

    /// Whether the ticket at `index` is in use and the owner's.
    fn is_ticket_of(&self, index: u64, owner: u64) -> bool {
        self.memory.ticket(index).is_some_and(|ticket| {
            TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase != Phase::Free
                && ticket.owner().load(Ordering::Relaxed) == owner
        })
    }
}

impl RuledPart<'_> {
    /// Whether a lease of the hold at `index` has run out.
    fn has_expired(&self, index: u64, now: u64) -> bool {
        self.expiry_of(index).is_some_and(|expiry| expiry <= now)
    }

    /// When the first lease of the hold at `index` runs out, on the segment clock.
    fn expiry_of(&self, index: u64) -> Option<u64> {
        let hold = self.memory.hold(index).filter(|hold| hold.is_taken())?;
        let counts_from = self.leases_count_from(hold);
        self.held_limits()
            .zip(hold.amounts())
            .filter(|(_, amount)| amount.load(Ordering::Relaxed) > 0)
            .filter_map(|(limit, _)| limit.lease)
            .map(|lease| counts_from.saturating_add(lease))
            .min()
    }

    /// From when on the leases of a hold count, on the segment clock. A hold from before a change of the limits is
    /// given the time of the new leases from then on: it may have had none before.
    fn leases_count_from(&self, hold: HoldPlace<'_>) -> u64 {
        let applied_at = self.memory.control().applied_at.load(Ordering::Relaxed);
        hold.renewed_at().load(Ordering::Relaxed).max(applied_at)
    }
}

impl SegmentEngine {
    /// Looks for dead holders, unless this process did so a moment ago; answers how many holds were given back.
    #[cold]
    pub(crate) fn reclaim_if_due(&self, part: Part<'_>) -> Result<u64, Box<Error>> {
        let started = boot_nanos();
        let due = part.memory.next_probe.load(Ordering::Relaxed);
        // One thread looks; the others take its result as theirs.
        let claimed = started >= due
            && part
                .memory
                .next_probe
                .compare_exchange(
                    due,
                    // A child forked while this thread looks inherits the word: it must not wait for ever.
                    started.saturating_add(LONGEST_LOOK),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if !claimed {
            return Ok(0);
        }
        let outcome = self.reclaim(part);
        let ended = boot_nanos();
        let pause = ended
            .saturating_sub(started)
            .saturating_mul(SHARE_OF_TIME)
            .max(SHORTEST_INTERVAL);
        let next = match &self.virtual_clock {
            None => ended.saturating_add(pause),
            // What a decision comes to must not depend on how fast this process runs.
            Some(_) => 0,
        };
        part.memory.next_probe.store(next, Ordering::Relaxed);
        outcome
    }

    /// Gives back everything in the set whose owner is dead or whose lease has run out; answers how many holds.
    pub(crate) fn reclaim(&self, part: Part<'_>) -> Result<u64, Box<Error>> {
        self.membership.keep_token();
        let mut reclaimed = 0;
        for owner in part.owners() {
            if !self.is_owner_alive(owner) {
                reclaimed += self.reclaim_from(part, owner, |_| {})?;
            }
        }
        if part.by_its_definition().has_leases {
            self.expire(part)?;
        }
        Ok(reclaimed)
    }

    /// Gives back everything of one owner who is dead; answers how many holds. Before each time that the lock is let
    /// go of, `before_unlock` may look at what is about to happen.
    pub(super) fn reclaim_from<'a>(
        &'a self,
        part: Part<'a>,
        owner: u64,
        mut before_unlock: impl FnMut(&LockedPart<'a>),
    ) -> Result<u64, Box<Error>> {
        // What was granted and not claimed first: nobody has used it, so all of it comes back, hold and reserved cost.
        let tickets = part.memory.touched_tickets();
        self.in_batches(
            part,
            tickets,
            |index| part.is_ticket_of(index, owner),
            |locked, index| locked.take_back_ticket(index, &part.memory.control().reclaimed_tickets),
            &mut before_unlock,
        )?;
        let holds = part.memory.touched_holds();
        self.in_batches(
            part,
            holds,
            |index| part.is_hold_of(index, owner),
            |locked, index| {
                let mut transaction = part.memory.journal().begin();
                locked.free_hold(&mut transaction, index, Ending::OwnerDied);
                transaction.add(&part.memory.control().reclaimed, 1);
                part.commit(transaction)
            },
            &mut before_unlock,
        )
    }

    /// Gives back what was held for longer than its lease.
    fn expire(&self, part: Part<'_>) -> Result<u64, Box<Error>> {
        let now = self.segment_nanos();
        let holds = part.memory.touched_holds();
        self.in_batches(
            part,
            holds,
            |index| part.by_its_definition().has_expired(index, now),
            |locked, index| {
                let mut transaction = part.memory.journal().begin();
                locked.expire_hold(&mut transaction, index);
                part.commit(transaction)
            },
            &mut |_| {},
        )
    }

    /// When the next lease of the set runs out, on the boot-time clock.
    pub(super) fn earliest_expiry(&self, part: RuledPart<'_>) -> u64 {
        (0..part.memory.touched_holds())
            .filter_map(|index| part.expiry_of(index))
            .min()
            .map_or(u64::MAX, |expiry| self.boot_instant(expiry))
    }

    /// Does something to each index below `end` that is `wanted`: looked up without the lock, in portions, each looked
    /// at again under it. Answers how many there were.
    fn in_batches<'a>(
        &'a self,
        part: Part<'a>,
        end: u64,
        wanted: impl Fn(u64) -> bool,
        mut act: impl FnMut(&LockedPart<'a>, u64) -> Result<(), Box<Error>>,
        before_unlock: &mut impl FnMut(&LockedPart<'a>),
    ) -> Result<u64, Box<Error>> {
        let mut done = 0;
        let mut next = 0;
        loop {
            let found: Vec<u64> = (next..end).filter(|index| wanted(*index)).take(BATCH).collect();
            let Some(last) = found.last() else {
                return Ok(done);
            };
            next = last + 1;
            let mut locked = self.lock(part)?;
            for index in found.into_iter().filter(|index| wanted(*index)) {
                act(&locked, index)?;
                done += 1;
            }
            locked.serve_every_line()?;
            before_unlock(&locked);
        }
    }
}

impl LockedPart<'_> {
    /// Gives back the amounts of a hold whose leases have run out, and frees it when nothing is left.
    fn expire_hold(&self, transaction: &mut Transaction<'_>, index: u64) {
        let Some(hold) = self.part.memory.hold(index) else {
            return;
        };
        let control = self.part.memory.control();
        let row = self.part.row(hold.row().index);
        let counts_from = self.part.leases_count_from(hold);
        let mut expired = hold.expired().load(Ordering::Relaxed);
        let mut is_empty = true;
        for ((word, limit), number) in hold
            .amounts()
            .iter()
            .zip(self.part.held_limits())
            .zip(&self.part.held_indexes)
        {
            let amount = word.load(Ordering::Relaxed);
            let has_run_out = limit
                .lease
                .is_some_and(|lease| counts_from.saturating_add(lease) <= self.now.monotonic);
            if amount > 0 && has_run_out && limit.kind == Kind::Concurrency {
                limit.give_back(row, transaction, amount);
                transaction.store(word, 0);
                transaction.add(&self.part.counters(limit.index).reclaimed, amount);
                transaction.add(&control.expired, 1);
                expired |= 1 << number;
            } else {
                is_empty &= amount == 0;
            }
        }
        transaction.store(hold.expired(), expired);
        if is_empty {
            self.free_hold(transaction, index, Ending::Undone);
        }
    }
}
