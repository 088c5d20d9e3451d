//! Giving back what dead processes held or waited for. Finding out which are dead happens outside the lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::queue::{Phase, TicketState};
use crate::shm::probes;
use crate::shm::process::participant::ParticipantId;
use crate::shm::time::clock::boot_nanos;

/// The shortest time between two looks for the dead by one process.
const SHORTEST_INTERVAL: u64 = 1_000_000;

/// After this long another thread may look although the first has not come to an end.
const LONGEST_LOOK: u64 = 1_000_000_000;

/// A process spends at most one part in this many of its time on looking.
const SHARE_OF_TIME: u64 = 20;

/// Holds or tickets given back under one hold of the lock.
pub(in crate::engine) const BATCH: usize = 64;

impl<Rules> Shard<'_, Rules> {
    /// Whether this process may look for dead holders again.
    pub(crate) fn reclaim_is_due(&self) -> bool {
        boot_nanos() >= self.next_reclaim()
    }

    /// When this process may look for dead holders again, on the boot-time clock.
    pub(crate) fn next_reclaim(&self) -> u64 {
        self.memory.next_probe.load(Ordering::Relaxed)
    }

    /// Who holds something.
    pub(in crate::engine) fn holders(&self) -> impl Iterator<Item = u64> {
        (0..self.memory.touched_holds())
            .filter_map(|index| self.memory.hold(index))
            .map(|hold| hold.owner().load(Ordering::Relaxed))
            .filter(|owner| *owner != 0)
    }

    /// Who owns something: holds and tickets. Zero where a ticket was given up.
    pub(in crate::engine) fn owners(&self) -> HashSet<u64> {
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

    /// Whether the ticket at `index` waits although its time was up at an instant of the segment clock.
    fn waits_in_vain(&self, index: u64, now: u64) -> bool {
        self.memory.ticket(index).is_some_and(|ticket| {
            TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase == Phase::Waiting
                && ticket.is_expired(now)
        })
    }

    /// Whether the ticket at `index` is in use and the owner's.
    fn is_ticket_of(&self, index: u64, owner: u64) -> bool {
        self.memory.ticket(index).is_some_and(|ticket| {
            TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase != Phase::Free
                && ticket.owner().load(Ordering::Relaxed) == owner
        })
    }
}

impl SegmentEngine {
    /// Looks for dead holders, unless this process did so a moment ago; answers how many holds were given back.
    #[cold]
    pub(crate) fn reclaim_if_due(&self, shard: Shard<'_>, wait: LockWait) -> Result<u64, Box<Error>> {
        let started = boot_nanos();
        let due = shard.memory.next_probe.load(Ordering::Relaxed);
        // One thread looks; the others take its result as theirs.
        let claimed = started >= due
            && shard
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
        let outcome = self.reclaim(shard, wait);
        let ended = boot_nanos();
        let pause = ended
            .saturating_sub(started)
            .saturating_mul(SHARE_OF_TIME)
            .max(SHORTEST_INTERVAL);
        // By a virtual clock, what a decision comes to must not depend on how fast this process runs.
        let next = if self.clock.is_virtual() {
            0
        } else {
            ended.saturating_add(pause)
        };
        shard.memory.next_probe.store(next, Ordering::Relaxed);
        outcome
    }

    /// Gives back everything in the set whose owner is dead, whose lease has run out, or that is not leased to this host any
    /// more; answers how many holds.
    pub(crate) fn reclaim(&self, shard: Shard<'_>, wait: LockWait) -> Result<u64, Box<Error>> {
        let mut reclaimed = 0;
        for owner in shard.owners() {
            if !self.is_owner_alive(owner) {
                reclaimed += self.reclaim_from(shard, owner, wait, |_| {})?;
            }
        }
        self.take_expired_tickets_back(shard, wait)?;
        if shard
            .by_its_definition()
            .lapse_is_due(self.now_without_lock(shard))
        {
            self.lock_to_give_back(shard, wait)?.lapse_in_every_row()?;
        }
        if shard.by_its_definition().has_leases {
            self.expire(shard, wait)?;
            self.reclaim_places(shard, wait)?;
        }
        Ok(reclaimed)
    }

    /// Takes those out of the queues whose time is up: their owners may be stopped, and others want for tickets.
    fn take_expired_tickets_back(&self, shard: Shard<'_>, wait: LockWait) -> Result<(), Box<Error>> {
        let now = self.now_without_lock(shard);
        let timed_out = &shard.memory.control().timed_out;
        self.in_batches(
            shard,
            shard.memory.touched_tickets(),
            wait,
            |index| shard.waits_in_vain(index, now),
            |locked, index| locked.take_back_ticket(index, timed_out),
            &mut |_| {},
        )
        .map(drop)
    }

    /// Gives back everything of one dead owner, and returns how many holds that were. Before each release of the lock,
    /// `before_unlock` may look at what is about to happen.
    pub(in crate::engine) fn reclaim_from<'a>(
        &'a self,
        shard: Shard<'a>,
        owner: u64,
        wait: LockWait,
        mut before_unlock: impl FnMut(&LockedShard<'a>),
    ) -> Result<u64, Box<Error>> {
        // What was granted and not claimed first: no process has used it, so all of it comes back, hold and reserved
        // cost.
        let tickets = shard.memory.touched_tickets();
        let waiters = self.in_batches(
            shard,
            tickets,
            wait,
            |index| shard.is_ticket_of(index, owner),
            |locked, index| locked.take_back_ticket(index, &shard.memory.control().reclaimed_tickets),
            &mut before_unlock,
        )?;
        let end_of_holds = shard.memory.touched_holds();
        let holds = self.in_batches(
            shard,
            end_of_holds,
            wait,
            |index| shard.is_hold_of(index, owner),
            |locked, index| {
                if locked.finish_if_marked(index)? {
                    return Ok(());
                }
                let mut transaction = shard.memory.journal().begin();
                locked.free_hold(&mut transaction, index, Ending::OwnerDied);
                transaction.count(&shard.memory.control().reclaimed, 1);
                shard.commit(&mut transaction)
            },
            &mut before_unlock,
        )?;
        if holds > 0 || waiters > 0 {
            let pid = || self.pid_of(owner);
            probes::reclaimed::fire(|| (self.path(), &shard.set.name, pid(), holds, waiters));
        }
        #[cfg(feature = "tracing")]
        if holds > 0 {
            contained(|| {
                tracing::warn!(path = %self.path().display(), set = &*shard.set.name, holds, "reclaimed");
            });
        }
        Ok(holds)
    }

    /// The process of a participant, by its number in its own PID namespace; 0 where its slot is no longer its own.
    pub(in crate::engine) fn pid_of(&self, owner: u64) -> u64 {
        ParticipantId::from_word(owner)
            .and_then(|id| self.membership.table().identity_of(id))
            .map_or(0, |identity| identity.pid)
    }

    /// Does something to each index below `end` that is `wanted`: looked up without the lock, in portions, each looked
    /// at again under it. Answers how many there were.
    pub(in crate::engine) fn in_batches<'a>(
        &'a self,
        shard: Shard<'a>,
        end: u64,
        wait: LockWait,
        wanted: impl Fn(u64) -> bool,
        mut act: impl FnMut(&LockedShard<'a>, u64) -> Result<(), Box<Error>>,
        before_unlock: &mut impl FnMut(&LockedShard<'a>),
    ) -> Result<u64, Box<Error>> {
        let mut done = 0;
        let mut next = 0;
        loop {
            let found: Vec<u64> = (next..end).filter(|index| wanted(*index)).take(BATCH).collect();
            let Some(last) = found.last() else {
                return Ok(done);
            };
            next = last + 1;
            let mut locked = self.lock_to_give_back(shard, wait)?;
            for index in found.into_iter().filter(|index| wanted(*index)) {
                act(&locked, index)?;
                done += 1;
            }
            locked.serve_every_queue()?;
            before_unlock(&locked);
        }
    }
}
