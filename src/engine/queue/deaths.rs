//! Notifies a waiter of deaths that may let it be served: those of processes ahead of it in the queue, and of
//! processes that hold something.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::queue::own_ticket::Waiting;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::queue;
use crate::shm::file::region::Mapped;
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::process::participant::{ParticipantId, Watchable};
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::death_watch::{DeathWatch, MAX_PROCESSES, Watched, wake_on_death};
use crate::sorting::set_of;

/// After this long in the queue, in nanoseconds, a waiter asks to be notified of deaths. Most waits are
/// over by then.
pub(crate) const SHORT_WAIT: u64 = 2_000_000;

/// How often a process that is not notified of deaths looks for them and asks again to be notified, in nanoseconds.
pub(crate) const UNWATCHED_SLICE: u64 = 50_000_000;

/// How often a process that is notified of deaths looks in any case, in nanoseconds: some changes may have gone
/// unreported. The machine may have been suspended, the wall clock set, or a process killed between a change and the
/// wake.
pub(crate) const WATCHED_SLICE: u64 = 1_000_000_000;

/// The processes whose deaths one thread is notified of.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    watched: BTreeSet<u64>,
    watch: Option<DeathWatch>,
    /// When to ask again, on the boot-time clock.
    next_look: u64,
}

/// The outcome of asking to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeathNotice {
    Watched,
    /// One of the processes is already dead.
    DeadAlready,
    /// Not all are watched: the kernel cannot do it, there are too many, or some are in another PID namespace.
    Unwatched,
}

impl Deaths {
    /// Whether a process died. If so, the watch ends.
    pub(crate) fn take_fired(&mut self) -> bool {
        let has_fired = self.watch.as_ref().is_some_and(DeathWatch::has_fired);
        if has_fired {
            self.watch = None;
        }
        has_fired
    }
}

impl SegmentEngine {
    /// Asks to be notified when one of the owners dies. A watch that already covers them all is kept.
    fn watch_owners(
        &self,
        deaths: &mut Deaths,
        owners: BTreeSet<u64>,
        futex: impl FnOnce() -> Option<Mapped<AtomicU64>>,
    ) -> DeathNotice {
        if owners.is_empty() || (deaths.watch.is_some() && owners.is_subset(&deaths.watched)) {
            return DeathNotice::Watched;
        }
        deaths.watch = None;
        let mut has_unwatched = owners.len() > MAX_PROCESSES;
        let mut pids = Vec::new();
        deaths.watched = BTreeSet::new();
        for owner in owners.into_iter().take(MAX_PROCESSES) {
            let id = ParticipantId::from_word(owner);
            match id.map_or(Watchable::Gone, |id| self.membership.watchable(id)) {
                Watchable::Here(pid) => {
                    pids.push(pid);
                    deaths.watched.insert(owner);
                }
                Watchable::Elsewhere => has_unwatched = true,
                Watchable::Gone => return DeathNotice::DeadAlready,
            }
        }
        if pids.is_empty() {
            return DeathNotice::Unwatched;
        }
        let Some(futex) = futex() else {
            return DeathNotice::Unwatched;
        };
        match wake_on_death(&pids, futex) {
            Watched::Watching(watch) => {
                deaths.watch = Some(watch);
                // Deaths of the others are found by looking.
                if has_unwatched {
                    DeathNotice::Unwatched
                } else {
                    DeathNotice::Watched
                }
            }
            Watched::DeadAlready => DeathNotice::DeadAlready,
            Watched::Unable => DeathNotice::Unwatched,
        }
    }

    /// Asks on behalf of a thread that sleeps on its ticket's waiter futex. The owners to watch only become fewer:
    /// later requests wait behind this one, and whoever gets a hold later was ahead of it in the queue.
    pub(in crate::engine) fn watch_for_deaths(
        &self,
        shard: Shard<'_>,
        waiting: &mut Waiting,
        deaths: &mut Deaths,
    ) {
        let now = boot_nanos();
        if deaths.take_fired() {
            // Do not watch again until what the dead process had can have been reclaimed.
            waiting.look_for_the_dead(shard.next_reclaim(), UNWATCHED_SLICE);
            deaths.next_look = now.saturating_add(UNWATCHED_SLICE);
            return;
        }
        if now < deaths.next_look.max(waiting.began.saturating_add(SHORT_WAIT)) {
            return;
        }
        let futex = || {
            ShardMemory::mapped_waiter_futex(self.region(), &shard.memory.geometry, waiting.ticket.index).ok()
        };
        let slice = match self.watch_owners(deaths, self.owners_before(shard, waiting), futex) {
            DeathNotice::Watched => {
                waiting.slice = WATCHED_SLICE;
                WATCHED_SLICE
            }
            DeathNotice::DeadAlready => {
                waiting.look_for_the_dead(shard.next_reclaim(), UNWATCHED_SLICE);
                UNWATCHED_SLICE
            }
            DeathNotice::Unwatched => UNWATCHED_SLICE,
        };
        deaths.next_look = now.saturating_add(slice);
    }

    /// Asks on behalf of the thread that sleeps on this process's futex for all its tickets in these shards.
    pub(crate) fn watch_for_deaths_in<'a>(
        &self,
        shards: impl Iterator<Item = Shard<'a>>,
        deaths: &mut Deaths,
    ) -> DeathNotice {
        let mut owners = set_of(shards.flat_map(|shard| shard.owners()));
        self.retain_others(&mut owners);
        let futex = || {
            let own = ParticipantId::from_word(self.membership.owner_so_far())?;
            self.membership.table().mapped_process_futex(own).ok()
        };
        self.watch_owners(deaths, owners, futex)
    }

    /// The other processes whose deaths could let a ticket be served.
    fn owners_before(&self, shard: Shard<'_>, waiting: &Waiting) -> BTreeSet<u64> {
        if shard.set.has_overall() {
            // Anyone may be the first in order.
            let mut owners = set_of(shard.owners());
            self.retain_others(&mut owners);
            return owners;
        }
        let queue = QueueWords::reading(shard.memory);
        let mut owners = set_of(shard.holders());
        let mut index = waiting.ticket.index;
        // Read without the lock, the links may lead anywhere, so the walk is bounded.
        for _ in 0..shard.memory.touched_tickets() {
            let Some(before) = queue::predecessor(&queue, index) else {
                break;
            };
            let ticket = shard.memory.ticket(before);
            owners.extend(ticket.map(|ticket| ticket.owner().load(Ordering::Relaxed)));
            index = before;
        }
        self.retain_others(&mut owners);
        owners
    }

    fn retain_others(&self, owners: &mut BTreeSet<u64>) {
        owners.retain(|owner| *owner != 0 && !self.membership.is_current(*owner));
    }
}
