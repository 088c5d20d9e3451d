//! Gives back what dead processes held or waited for. Which ones are dead is found out outside of the lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::queue::{Phase, TicketState};
use crate::shm::probes;
use crate::shm::process::participant::ParticipantId;
use crate::shm::time::clock::boot_nanos;

/// The shortest time between two searches for the dead by one process, in nanoseconds.
const SHORTEST_INTERVAL: u64 = 1_000_000;

/// After this long another thread may look, even if the first one has not finished, in nanoseconds.
const LONGEST_LOOK: u64 = 1_000_000_000;

/// A process spends at most one part in this many of its time on these searches.
const SHARE_OF_TIME: u64 = 20;

/// How many holds or tickets are given back under one lock.
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

    /// The owners of the holds in use.
    pub(in crate::engine) fn holders(&self) -> impl Iterator<Item = u64> {
        (0..self.memory.touched_holds())
            .filter_map(|index| self.memory.hold(index))
            .map(|hold| hold.owner().load(Ordering::Relaxed))
            .filter(|owner| *owner != 0)
    }

    /// The owners of the holds and tickets in use. Zero stands for tickets that were given up.
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

    /// Whether the hold at `index` belongs to `owner`.
    fn is_hold_of(&self, index: u64, owner: u64) -> bool {
        owner != 0
            && self
                .memory
                .hold(index)
                .is_some_and(|hold| hold.owner().load(Ordering::Relaxed) == owner)
    }

    /// Whether the ticket at `index` still waits although its time was up at `now`, on the segment clock.
    fn waits_in_vain(&self, index: u64, now: u64) -> bool {
        self.memory.ticket(index).is_some_and(|ticket| {
            TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase == Phase::Waiting
                && ticket.is_expired(now)
        })
    }

    /// Whether the ticket at `index` is in use and belongs to `owner`.
    fn is_ticket_of(&self, index: u64, owner: u64) -> bool {
        self.memory.ticket(index).is_some_and(|ticket| {
            TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase != Phase::Free
                && ticket.owner().load(Ordering::Relaxed) == owner
        })
    }
}

impl SegmentEngine {
    /// Reclaims, unless this process did so a moment ago. Returns how many holds of dead owners were given back.
    #[cold]
    pub(crate) fn reclaim_if_due(&self, shard: Shard<'_>, wait: LockWait) -> Result<u64, Box<Error>> {
        let started = boot_nanos();
        let due = shard.memory.next_probe.load(Ordering::Relaxed);
        // One thread looks. The others do not wait for it.
        let claimed = started >= due
            && shard
                .memory
                .next_probe
                .compare_exchange(
                    due,
                    // A child forked during this look inherits the word, and must not wait for ever.
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
        // Under a virtual clock, no decision may depend on how fast this process runs.
        let next = if self.clock.is_virtual() {
            0
        } else {
            ended.saturating_add(pause)
        };
        shard.memory.next_probe.store(next, Ordering::Relaxed);
        outcome
    }

    /// Gives back everything in the shard whose owner is dead, whose lease has expired, or that is no longer leased to
    /// this host; also tickets whose time is up, and grants that have lapsed. Returns how many holds of dead owners
    /// there were.
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
            self.lock(shard, LockFor::GiveBack, wait)?.lapse_in_every_row()?;
        }
        if shard.by_its_definition().has_leases {
            self.expire(shard, wait)?;
            self.reclaim_places(shard, wait)?;
        }
        Ok(reclaimed)
    }

    /// Takes tickets whose time is up out of the queues: their owners may be stopped, and others need the places.
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

    /// Gives back everything of one dead owner. Returns how many holds it had. Before each unlock, `before_unlock` may
    /// look at what is about to happen.
    pub(in crate::engine) fn reclaim_from<'a>(
        &'a self,
        shard: Shard<'a>,
        owner: u64,
        wait: LockWait,
        mut before_unlock: impl FnMut(&LockedShard<'a>),
    ) -> Result<u64, Box<Error>> {
        // Grants that were not collected come first: nobody has used them, so all of each comes back, hold and reserved
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
                shard.commit(&mut transaction)?;
                locked.correct_freed(index);
                Ok(())
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

    /// The PID of a participant's process in its own PID namespace; 0 if the slot no longer belongs to that
    /// participant.
    pub(in crate::engine) fn pid_of(&self, owner: u64) -> u64 {
        ParticipantId::from_word(owner)
            .and_then(|id| self.membership.table().identity_of(id))
            .map_or(0, |identity| identity.pid)
    }

    /// Acts on each index below `end` that is `wanted`. Looks for them without the lock, in batches, and checks each
    /// again under it. Returns how many there were.
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
            let mut locked = self.lock(shard, LockFor::GiveBack, wait)?;
            for index in found.into_iter().filter(|index| wanted(*index)) {
                act(&locked, index)?;
                done += 1;
            }
            locked.serve_every_queue()?;
            before_unlock(&locked);
        }
    }
}
