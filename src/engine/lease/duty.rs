//! Which process of the host asks the store: the one whose owner word stands in the first record of the segment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::duty_words::DutyWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::SetEngine;
use crate::error::Error;
use crate::limit::LeaseWord;
use crate::shm::file::region::load_acquire;
use crate::shm::process::participant::{ParticipantId, Watchable};
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::death_watch::{Watched, wake_on_death};
use crate::shm::wake::futex;

/// How long it is waited, in nanoseconds, before duty is looked at again that a dead process has: its file lock is released
/// a moment after its descriptor says that it is dead.
const DYING: u64 = 1_000_000;

/// How often duty is looked at where the kernel does not say that a process died, in nanoseconds.
const UNWATCHED: u64 = 20_000_000;

/// Who has duty in a segment, as an owner word, and how often it was taken over from a process that had died with it; none
/// where no limit has room for a lease.
pub(crate) fn duty_of(sets: &[Arc<SetEngine>]) -> Option<(u64, u64)> {
    sets.iter().find_map(|set| {
        let row = set.shard(0).memory.only_row();
        let words = set
            .shown()
            .limits
            .iter()
            .find_map(|limit| limit.lease_words(row))?;
        let read = |word: LeaseWord| Some(words.get(word as usize)?.load(Ordering::Relaxed));
        Some((read(LeaseWord::Duty)?, read(LeaseWord::Takeovers)?))
    })
}

impl SegmentEngine {
    /// The words of the segment that say who has duty; none where no limit has room for a lease.
    pub(in crate::engine) fn duty_words(&self) -> Option<&DutyWords> {
        self.duty.as_ref()
    }

    /// The owner word of the process that has duty; zero where none has.
    pub(crate) fn duty_owner(&self) -> u64 {
        self.duty_words().map_or(0, |words| load_acquire(words.duty()))
    }

    /// Whether this process is the one that `owner` names and has duty.
    pub(crate) fn has_duty(&self, owner: u64) -> bool {
        owner != 0 && self.membership.is_current(owner) && self.duty_owner() == owner
    }

    /// Takes duty where no live process has it; answers as which owner. A process takes it once.
    pub(crate) fn try_take_duty(&self) -> Result<Option<u64>, Box<Error>> {
        let Some(words) = self.duty_words() else {
            return Ok(None);
        };
        let owner = self.membership.owner()?;
        let found = load_acquire(words.duty());
        if found != 0 && (found == owner || self.is_owner_alive(found)) {
            return Ok(None);
        }
        // Of several that find it free, one takes it.
        let taken = words
            .duty()
            .compare_exchange(found, owner, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            return Ok(None);
        }
        if found != 0 {
            words.takeovers().fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(owner))
    }

    /// As [`try_take_duty`](Self::try_take_duty), waiting for it until it is free or its owner dies, at most so long.
    pub(crate) fn wait_for_duty(&self, timeout: Duration) -> Result<Option<u64>, Box<Error>> {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = boot_nanos().saturating_add(timeout);
        loop {
            let Some(words) = self.duty_words() else {
                std::thread::sleep(Duration::from_nanos(deadline.saturating_sub(boot_nanos())));
                return Ok(None);
            };
            let seen = futex::value(words.duty_free());
            if let Some(owner) = self.try_take_duty()? {
                return Ok(Some(owner));
            }
            let left = deadline.saturating_sub(boot_nanos());
            if left == 0 {
                return Ok(None);
            }
            let (watch, slice) = self.watch_duty(words);
            futex::wait(words.duty_free(), seen, Duration::from_nanos(left.min(slice)));
            drop(watch);
            if futex::value(words.duty_free()) != seen {
                // A wake is for one sleeper, and each process that watches wakes one: it may not have been its own.
                futex::wake(words.duty_free());
            }
        }
    }

    /// Asks to be woken when the process that has duty dies, and for how long to sleep at most.
    fn watch_duty(&self, words: &DutyWords) -> (Option<Watched>, u64) {
        let owner = load_acquire(words.duty());
        let Some(id) = ParticipantId::from_word(owner) else {
            return (None, if owner == 0 { 0 } else { DYING });
        };
        let pid = match self.membership.watchable(id) {
            Watchable::Here(pid) => pid,
            Watchable::Elsewhere => return (None, UNWATCHED),
            Watchable::Gone => return (None, DYING),
        };
        if self.membership.is_current(owner) {
            return (None, u64::MAX);
        }
        let Ok(futex) = words.mapped_duty_free() else {
            return (None, UNWATCHED);
        };
        match wake_on_death(&[pid], futex) {
            Watched::DeadAlready => (None, DYING),
            Watched::Unable => (None, UNWATCHED),
            watching => (Some(watching), u64::MAX),
        }
    }

    /// Gives duty up, where `owner` has it, and wakes one that would take it.
    pub(crate) fn give_up_duty(&self, owner: u64) {
        let Some(words) = self.duty_words().filter(|_| self.has_duty(owner)) else {
            return;
        };
        let freed = words
            .duty()
            .compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        if freed.is_ok() {
            futex::bump(words.duty_free());
            futex::wake(words.duty_free());
        }
    }

    /// Sleeps until a request may be due, at most so long.
    pub(crate) fn wait_for_shortage(&self, timeout: Duration) {
        let Some(words) = self.duty_words() else {
            std::thread::sleep(timeout);
            return;
        };
        let seen = futex::value(words.duty_futex());
        let wait = match self.lease_due_in() {
            None => timeout,
            Some(due) => timeout.min(Duration::from_nanos(due)),
        };
        if !wait.is_zero() {
            futex::wait(words.duty_futex(), seen, wait);
        }
    }
}
