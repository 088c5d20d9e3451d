//! Which process of the host asks the store: the one whose owner word is in the segment's first lease record. It is
//! on duty.
//!
//! It stays on duty until a deadline, which it extends with each step. If it is stopped or hangs, another process
//! takes over, and answers that the first one gets later no longer count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::shard::duty_words::DutyWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::SetEngine;
use crate::error::Error;
use crate::limit::LeaseWord;
use crate::shm::file::region::load_acquire;
use crate::shm::process::participant::{ParticipantId, Watchable};
use crate::shm::wake::death_watch::{Watched, wake_on_death};
use crate::shm::wake::futex;
use crate::units::NANOS_PER_SECOND;

/// How long to wait before looking again at the duty of a dead process, in nanoseconds: its file lock is released a
/// moment after its descriptor reports the death.
pub(super) const DYING: u64 = 1_000_000;

/// How often to check who is on duty if the kernel does not report deaths, in nanoseconds.
const UNWATCHED: u64 = 20_000_000;

/// How long a process stays on duty when it takes duty or asks the store, in nanoseconds: enough for one exchange.
pub(crate) const EXCHANGE: u64 = 3 * NANOS_PER_SECOND;

/// The longest that one step can extend duty, in nanoseconds.
const LONGEST: u64 = 60 * NANOS_PER_SECOND;

/// One term of duty: from the moment a process takes it until it gives it up or loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenDuty {
    /// The participant that has it.
    owner: u64,
    /// How many times duty has been taken, this time included.
    number: u64,
}

/// Who is on duty in a segment, as its words say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeenDuty {
    pub(crate) owner: u64,
    /// Until when that process is on duty, on the segment clock.
    pub(crate) until: u64,
    pub(crate) takeovers: u64,
    /// Whether the store evicts keys, as a process on duty last found.
    pub(crate) evicts: bool,
}

/// Who is on duty in a segment; `None` if no limit has room for a lease.
pub(crate) fn duty_of(sets: &[Arc<SetEngine>]) -> Option<SeenDuty> {
    sets.iter().find_map(|set| {
        let row = set.shard(0).memory.lease_row();
        let words = set
            .shown()
            .limits
            .iter()
            .find_map(|limit| limit.lease_words(row))?;
        let read = |word: LeaseWord| Some(words.get(word as usize)?.load(Ordering::Relaxed));
        Some(SeenDuty {
            owner: read(LeaseWord::Duty)?,
            until: read(LeaseWord::DutyUntil)?,
            takeovers: read(LeaseWord::Takeovers)?,
            evicts: read(LeaseWord::Evicts)? != 0,
        })
    })
}

impl SegmentEngine {
    /// The words of the segment that say who is on duty; `None` if no limit has room for a lease.
    pub(in crate::engine) fn duty_words(&self) -> Option<&DutyWords> {
        self.duty.as_ref()
    }

    /// The owner word of the process on duty; zero if there is none.
    pub(crate) fn duty_owner(&self) -> u64 {
        self.duty_words()
            .map_or(0, |words| load_acquire(words.word(LeaseWord::Duty)))
    }

    /// Whether this process still has the duty that it took.
    pub(crate) fn has_duty(&self, taken: TakenDuty) -> bool {
        self.membership.is_current(taken.owner)
            && self.duty_owner() == taken.owner
            && self
                .duty_words()
                .is_some_and(|words| load_acquire(words.word(LeaseWord::DutyTaken)) == taken.number)
    }

    /// Takes duty if nobody is on duty, or if the process on duty is dead or past its deadline. `None` if duty was
    /// not taken.
    pub(crate) fn try_take_duty(&self) -> Result<Option<TakenDuty>, Box<Error>> {
        let Some(words) = self.duty_words() else {
            return Ok(None);
        };
        let owner = self.membership.owner()?;
        let found = load_acquire(words.word(LeaseWord::Duty));
        let until = load_acquire(words.word(LeaseWord::DutyUntil));
        if self.has_duty_until(found, until) {
            return Ok(None);
        }
        // Of several processes that get here, one takes duty. The deadline comes first: if it had passed, those that
        // look before the owner word changes find that duty is being taken.
        let next = self.system_nanos().saturating_add(EXCHANGE);
        let swap = |word: &AtomicU64, old: u64, new: u64| {
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if !swap(words.word(LeaseWord::DutyUntil), until, next)
            || !swap(words.word(LeaseWord::Duty), found, owner)
        {
            return Ok(None);
        }
        if found != 0 {
            words.word(LeaseWord::Takeovers).fetch_add(1, Ordering::Relaxed);
        }
        let number = words
            .word(LeaseWord::DutyTaken)
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1);
        Ok(Some(TakenDuty { owner, number }))
    }

    /// Whether nobody is on duty, or only a process that is dead or past its deadline.
    pub(super) fn is_duty_free(&self) -> bool {
        self.duty_words().is_some_and(|words| {
            let found = load_acquire(words.word(LeaseWord::Duty));
            !self.has_duty_until(found, load_acquire(words.word(LeaseWord::DutyUntil)))
        })
    }

    fn has_duty_until(&self, owner: u64, until: u64) -> bool {
        owner != 0 && self.duty_left(until) > 0 && self.is_owner_alive(owner)
    }

    /// For how many more nanoseconds a live owner stays on duty if its deadline is `until`.
    pub(super) fn duty_left(&self, until: u64) -> u64 {
        // If more is left than any owner can have asked for, the word is damaged.
        let left = until.saturating_sub(self.system_nanos());
        if left > LONGEST + EXCHANGE { 0 } else { left }
    }

    /// Stays on duty for `nanos` from now, at most a minute. Returns `false` if duty was lost.
    pub(crate) fn keep_duty(&self, taken: TakenDuty, nanos: u64) -> bool {
        let Some(words) = self.duty_words().filter(|_| self.has_duty(taken)) else {
            return false;
        };
        // If another process has just taken duty, this moves that process's deadline, until its own next step moves it
        // again.
        let until = self.system_nanos().saturating_add(nanos.min(LONGEST));
        words.word(LeaseWord::DutyUntil).store(until, Ordering::Release);
        true
    }

    /// Notes whether the store evicts keys.
    pub(crate) fn note_eviction(&self, taken: TakenDuty, evicts: bool) {
        if let Some(words) = self.duty_words().filter(|_| self.has_duty(taken)) {
            words
                .word(LeaseWord::Evicts)
                .store(evicts.into(), Ordering::Relaxed);
        }
    }

    /// Asks to be woken when the process on duty dies. Also returns how long to sleep at most, in nanoseconds.
    pub(super) fn watch_duty(&self, words: &DutyWords) -> (Option<Watched>, u64) {
        let owner = load_acquire(words.word(LeaseWord::Duty));
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
        let Ok(futex) = words.mapped(LeaseWord::DutyFree) else {
            return (None, UNWATCHED);
        };
        match wake_on_death(&[pid], futex) {
            Watched::DeadAlready => (None, DYING),
            Watched::Unable => (None, UNWATCHED),
            watching => (Some(watching), u64::MAX),
        }
    }

    /// Gives up duty, unless it was lost, and wakes a process that wants it.
    pub(crate) fn give_up_duty(&self, taken: TakenDuty) {
        let Some(words) = self.duty_words().filter(|_| self.has_duty(taken)) else {
            return;
        };
        let freed =
            words
                .word(LeaseWord::Duty)
                .compare_exchange(taken.owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        if freed.is_ok() {
            futex::bump(words.word(LeaseWord::DutyFree));
            futex::wake(words.word(LeaseWord::DutyFree));
        }
    }
}
