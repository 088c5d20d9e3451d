//! Being told of the deaths that would serve who waits: of those before it in line, and of those who hold something.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::line::LineWords;
use super::memory::PartMemory;
use super::segment::SegmentEngine;
use super::set::Part;
use super::waiting::Waiting;
use crate::queue;
use crate::shm::clock::boot_nanos;
use crate::shm::death_watch::{DeathWatch, MOST_PROCESSES, Watched, ring_on_death};
use crate::shm::participant::ParticipantId;
use crate::shm::region::Kept;

/// After this long in line, whoever waits asks to be told of deaths, in nanoseconds. Most waits are over by then.
pub(crate) const SHORT_WAIT: u64 = 2_000_000;

/// How often whoever is not told of deaths looks for them, and asks again to be told, in nanoseconds.
pub(crate) const UNWATCHED_SLICE: u64 = 50_000_000;

/// How often whoever is told of deaths looks after what nobody may have told it, in nanoseconds. The machine may have
/// been suspended, the wall clock set, or a process killed between what it did and the telling.
pub(crate) const WATCHED_SLICE: u64 = 1_000_000_000;

/// Whose deaths one thread is told of.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    watched: BTreeSet<u64>,
    watch: Option<DeathWatch>,
    /// When to ask again, on the boot-time clock.
    next_look: u64,
}

/// What came of a wish to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    WillBeTold,
    /// One of them is dead already.
    DeadAlready,
    /// The kernel cannot do it, or they are too many.
    WillNotBeTold,
}

impl Deaths {
    /// Whether somebody died. After this, nobody is watched any longer.
    pub(crate) fn take_fired(&mut self) -> bool {
        let has_fired = self.watch.as_ref().is_some_and(DeathWatch::has_fired);
        if has_fired {
            self.watch = None;
        }
        has_fired
    }
}

impl SegmentEngine {
    /// Asks to be told when one of the owners dies. Who is told already of more than these is not asked for again.
    fn watch_owners(
        &self,
        deaths: &mut Deaths,
        owners: BTreeSet<u64>,
        bell: impl FnOnce() -> Option<Kept<AtomicU64>>,
    ) -> Telling {
        if owners.is_empty() || (deaths.watch.is_some() && owners.is_subset(&deaths.watched)) {
            return Telling::WillBeTold;
        }
        deaths.watch = None;
        let is_too_many = owners.len() > MOST_PROCESSES;
        let owners: BTreeSet<u64> = owners.into_iter().take(MOST_PROCESSES).collect();
        let pid_of = |owner: &u64| self.membership.table().pid_of(ParticipantId::from_word(*owner)?);
        let Some(pids) = owners.iter().map(pid_of).collect::<Option<Vec<u64>>>() else {
            // The slot is free, or has a new life already: whoever had it before is gone.
            return Telling::DeadAlready;
        };
        deaths.watched = owners;
        let Some(bell) = bell() else {
            return Telling::WillNotBeTold;
        };
        match ring_on_death(&pids, bell) {
            Watched::Watching(watch) => {
                deaths.watch = Some(watch);
                // The others are found by looking.
                if is_too_many {
                    Telling::WillNotBeTold
                } else {
                    Telling::WillBeTold
                }
            }
            Watched::DeadAlready => Telling::DeadAlready,
            Watched::Unable => Telling::WillNotBeTold,
        }
    }

    /// Asks for a thread that waits by the bell of its ticket. Those before it only become fewer: who comes later waits
    /// behind it, and who holds something later was before it in line.
    pub(super) fn watch_for_deaths(&self, part: Part<'_>, waiting: &mut Waiting, deaths: &mut Deaths) {
        let now = boot_nanos();
        if deaths.take_fired() {
            // Not watched again before it can have been given back what the dead had.
            waiting.look_for_the_dead(part.next_reclaim(), UNWATCHED_SLICE);
            deaths.next_look = now.saturating_add(UNWATCHED_SLICE);
            return;
        }
        if now < deaths.next_look.max(waiting.began().saturating_add(SHORT_WAIT)) {
            return;
        }
        let bell =
            || PartMemory::keep_bell(self.region(), &part.memory.geometry, waiting.ticket().index).ok();
        let slice = match self.watch_owners(deaths, self.owners_before(part, waiting), bell) {
            Telling::WillBeTold => {
                waiting.set_slice(WATCHED_SLICE);
                WATCHED_SLICE
            }
            Telling::DeadAlready => {
                waiting.look_for_the_dead(part.next_reclaim(), UNWATCHED_SLICE);
                UNWATCHED_SLICE
            }
            Telling::WillNotBeTold => UNWATCHED_SLICE,
        };
        deaths.next_look = now.saturating_add(slice);
    }

    /// Asks for the thread that sleeps by the doorbell of this process for all tickets in some parts.
    pub(crate) fn watch_for_deaths_in<'a>(
        &self,
        parts: impl Iterator<Item = Part<'a>>,
        deaths: &mut Deaths,
    ) -> Telling {
        let mut owners: BTreeSet<u64> = parts.flat_map(|part| part.owners()).collect();
        self.retain_others(&mut owners);
        let bell = || {
            let own = ParticipantId::from_word(self.membership.owner_so_far())?;
            self.membership.table().keep_doorbell(own).ok()
        };
        self.watch_owners(deaths, owners, bell)
    }

    /// Other processes whose death would serve a ticket.
    fn owners_before(&self, part: Part<'_>, waiting: &Waiting) -> BTreeSet<u64> {
        let line = LineWords(part.memory);
        let mut owners: BTreeSet<u64> = part.holders().collect();
        let mut index = waiting.ticket().index;
        // Read without the lock, the links may lead anywhere, but not for longer than this.
        for _ in 0..part.memory.touched_tickets() {
            let Some(before) = queue::predecessor(&line, index) else {
                break;
            };
            let ticket = part.memory.ticket(before);
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
