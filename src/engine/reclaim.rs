//! Giving back what the dead held. Probing who is dead happens outside the lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::segment::{SegmentEngine, SetEngine};
use crate::error::Error;
use crate::shm::clock::boot_nanos;
use crate::shm::participant::ParticipantId;

/// The shortest time between two looks for the dead by one process.
const SHORTEST_INTERVAL: u64 = 1_000_000;

/// After this long another thread may look although the first has not come to an end.
const LONGEST_LOOK: u64 = 1_000_000_000;

/// A process spends at most one part in this many of its time on looking.
const SHARE_OF_TIME: u64 = 20;

/// Holds given back under one hold of the lock.
const BATCH: usize = 64;

impl SetEngine {
    /// Whether this process may look for dead holders again.
    pub(crate) fn reclaim_is_due(&self) -> bool {
        boot_nanos() >= self.next_probe.load(Ordering::Relaxed)
    }
}

impl SegmentEngine {
    /// Looks for dead holders, unless this process did so a moment ago; answers how many holds were given back.
    #[cold]
    pub(crate) fn reclaim_if_due(&self, set: &SetEngine) -> Result<u64, Box<Error>> {
        let started = boot_nanos();
        let due = set.next_probe.load(Ordering::Relaxed);
        // One thread looks; the others take its result as theirs.
        let claimed = started >= due
            && set
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
        let outcome = self.reclaim(set);
        let ended = boot_nanos();
        let pause = ended
            .saturating_sub(started)
            .saturating_mul(SHARE_OF_TIME)
            .max(SHORTEST_INTERVAL);
        set.next_probe
            .store(ended.saturating_add(pause), Ordering::Relaxed);
        outcome
    }

    /// Gives back every hold of the set whose owner is dead; answers how many.
    pub(crate) fn reclaim(&self, set: &SetEngine) -> Result<u64, Box<Error>> {
        self.membership.keep_token();
        let owners: HashSet<u64> = (0..set.memory.touched_holds())
            .filter_map(|index| set.memory.hold(index))
            .map(|hold| hold.owner().load(Ordering::Relaxed))
            .filter(|owner| *owner != 0)
            .collect();
        let mut reclaimed = 0;
        for owner in owners {
            // A word that names no participant names nobody who lives.
            let is_alive = ParticipantId::from_word(owner).is_some_and(|id| self.membership.is_alive(id));
            if !is_alive {
                reclaimed += self.reclaim_from(set, owner)?;
            }
        }
        Ok(reclaimed)
    }

    fn reclaim_from(&self, set: &SetEngine, owner: u64) -> Result<u64, Box<Error>> {
        let is_theirs = |index: &u64| {
            set.memory
                .hold(*index)
                .is_some_and(|hold| hold.owner().load(Ordering::Relaxed) == owner)
        };
        let mut reclaimed = 0;
        let mut next = 0;
        loop {
            // Looked up without the lock, in portions; each is looked at again under it.
            let found: Vec<u64> = (next..set.memory.touched_holds())
                .filter(is_theirs)
                .take(BATCH)
                .collect();
            let Some(last) = found.last() else {
                return Ok(reclaimed);
            };
            next = last + 1;
            let locked = self.lock(set)?;
            for index in found.into_iter().filter(is_theirs) {
                let mut transaction = set.memory.journal().begin();
                locked.free_hold(&mut transaction, index, true);
                transaction.add(&set.memory.control().reclaimed, 1);
                transaction
                    .commit()
                    .map_err(|overflow| set.internal_error(overflow))?;
                reclaimed += 1;
            }
        }
    }
}
