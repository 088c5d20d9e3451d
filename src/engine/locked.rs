//! A part whose lock is held, and the one way to take it.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use raw_sync::Timeout;

use super::bell::Rung;
use super::recover::Repairs;
use super::segment::SegmentEngine;
use super::set::{Part, RuledPart};
use crate::error::Error;
use crate::limit::Now;
use crate::shm::host::process_of_thread;
use crate::shm::journal::JournalState;
use crate::shm::layout::SET_UNCHECKED;
use crate::shm::robust_mutex::{Guard, LockError};
use crate::units::NANOS_PER_SECOND;

/// How far ahead of a reading of the clock the latest time of a part may be, in nanoseconds: an hour.
const MOST_AHEAD: u64 = 3600 * NANOS_PER_SECOND;

/// A part whose lock is held.
pub(crate) struct LockedPart<'a> {
    pub(crate) engine: &'a SegmentEngine,
    /// Decides by the definition that the part is of, which may be a later one than whoever locked it knew of.
    pub(crate) part: RuledPart<'a>,
    pub(crate) now: Now,
    guard: Guard<'a>,
    /// Dropped after the guard: whoever is to be woken is woken when the lock is free.
    pub(super) rung: AfterUnlock<'a>,
}

/// Whom to wake once the lock has been let go of.
pub(crate) struct AfterUnlock<'a> {
    engine: &'a SegmentEngine,
    part: Part<'a>,
    pub(super) bell: Cell<Option<Rung<'a>>>,
}

impl Drop for AfterUnlock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(rung) = self.bell.take() {
            self.engine.wake(self.part, rung);
        }
    }
}

impl LockedPart<'_> {
    /// Reads the clock again: for what goes on after the operation that the lock was taken for.
    #[cold]
    pub(super) fn read_clock(&mut self) {
        let last_seen = &self.part.memory.control().last_seen;
        let now = self.engine.now(self.part.unruled());
        let monotonic = now.monotonic.max(last_seen.load(Ordering::Relaxed));
        last_seen.store(monotonic, Ordering::Relaxed);
        self.now = Now { monotonic, ..now };
    }

    /// Whether an operation was begun and not ended by whoever had the lock before, or might have been.
    #[inline]
    fn was_left_unfinished(&self) -> bool {
        self.guard.owner_died()
            || self.part.memory.journal().state() != JournalState::Idle
            || self.part.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNCHECKED
    }

    #[inline]
    fn needs_attention(&self) -> bool {
        self.was_left_unfinished()
            || self.part.memory.control().poisoned.load(Ordering::Relaxed) != 0
            || self.is_of_another_definition()
    }
}

impl SegmentEngine {
    /// Takes the part's lock, first setting right what a dead owner left behind.
    ///
    /// The clock is read before the lock is taken, so that it is not part of the critical section.
    #[inline(always)]
    pub(crate) fn lock<'a>(&'a self, part: Part<'a>) -> Result<LockedPart<'a>, Box<Error>> {
        let now = self.now(part);
        self.lock_at(part, Some(now))
    }

    /// As [`lock`](Self::lock), for an instant that was read before: for several parts at one instant. Where a part
    /// was changed later already, the instant is that.
    #[inline]
    pub(super) fn lock_as_of<'a>(&'a self, part: Part<'a>, now: Now) -> Result<LockedPart<'a>, Box<Error>> {
        self.lock_at(part, Some(now))
    }

    /// As [`lock`](Self::lock), for what does not depend on time: the clock is not read, and the instant is the
    /// latest at which the part was changed.
    #[inline]
    pub(crate) fn lock_timeless<'a>(&'a self, part: Part<'a>) -> Result<LockedPart<'a>, Box<Error>> {
        self.lock_at(part, None)
    }

    #[inline(always)]
    fn lock_at<'a>(&'a self, part: Part<'a>, now: Option<Now>) -> Result<LockedPart<'a>, Box<Error>> {
        let mut locked = self.lock_as_it_is(part, now)?;
        if locked.needs_attention() {
            self.attend(&mut locked)?;
        }
        Ok(locked)
    }

    /// As [`lock`](Self::lock), but takes poisoned parts as well, and says what had to be repaired.
    pub(crate) fn lock_and_report<'a>(
        &'a self,
        part: Part<'a>,
    ) -> Result<(LockedPart<'a>, Option<Repairs>), Box<Error>> {
        let mut locked = self.lock_as_it_is(part, Some(self.now(part)))?;
        self.learn_definition(&mut locked)?;
        let repairs = self.recover_if_unfinished(&mut locked)?;
        self.carry_over(&mut locked)?;
        Ok((locked, repairs))
    }

    fn recover_if_unfinished(&self, locked: &mut LockedPart<'_>) -> Result<Option<Repairs>, Box<Error>> {
        if !locked.was_left_unfinished() {
            return Ok(None);
        }
        let repairs = self.recover(locked.part, locked.guard.owner_died());
        // What was undone may have been the step to the next definition itself.
        self.learn_definition(locked)?;
        Ok(Some(repairs))
    }

    #[cold]
    fn attend(&self, locked: &mut LockedPart<'_>) -> Result<(), Box<Error>> {
        // What was left unfinished was begun under the definition that the part is of.
        self.learn_definition(locked)?;
        self.recover_if_unfinished(locked)?;
        if locked.part.memory.control().poisoned.load(Ordering::Relaxed) != 0 {
            return Err(locked.part.poisoned());
        }
        self.carry_over(locked)?;
        // Whoever died may have freed something and not come to handing it on.
        locked.serve_every_line()
    }

    #[inline(always)]
    fn lock_as_it_is<'a>(
        &'a self,
        part: Part<'a>,
        mut reading: Option<Now>,
    ) -> Result<LockedPart<'a>, Box<Error>> {
        if self.is_retired() {
            return Err(self.retired());
        }
        let control = part.memory.control();
        let guard = match control.lock.try_lock() {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                let guard = self.wait_for_lock(part)?;
                // The wait may have been long: what is decided is decided now.
                reading = reading.map(|_| self.now(part));
                guard
            }
            Err(error) => return Err(self.lock_failure(part, error)),
        };
        let last_seen = control.last_seen.load(Ordering::Relaxed);
        let now = match reading {
            Some(now) if now.monotonic > last_seen => {
                control.last_seen.store(now.monotonic, Ordering::Relaxed);
                now
            }
            // Another process may have read a later time and been here first: within a part time never runs backwards.
            Some(now) if last_seen - now.monotonic < MOST_AHEAD => Now {
                monotonic: last_seen,
                ..now
            },
            Some(_) => self.now_despite(part, last_seen),
            None => Now {
                monotonic: last_seen,
                utc: 0,
            },
        };
        Ok(LockedPart {
            engine: self,
            // As far as this process has heard: what needs attention is told another.
            part: part.by(part.set.shown()),
            now,
            guard,
            rung: AfterUnlock {
                engine: self,
                part,
                bell: Cell::new(None),
            },
        })
    }

    #[inline(always)]
    pub(super) fn now(&self, part: Part<'_>) -> Now {
        self.read_clocks(part.set.reads_utc)
    }

    /// The time where the latest of the part is far ahead of a reading: this process was stopped after it had read
    /// the clock, or the latest is damage, because nobody can have read a time that is yet to come.
    #[cold]
    fn now_despite(&self, part: Part<'_>, last_seen: u64) -> Now {
        let now = self.now(part);
        if last_seen.saturating_sub(now.monotonic) < MOST_AHEAD {
            let monotonic = now.monotonic.max(last_seen);
            return Now { monotonic, ..now };
        }
        part.memory
            .control()
            .last_seen
            .store(now.monotonic, Ordering::Relaxed);
        now
    }

    #[cold]
    fn wait_for_lock<'a>(&self, part: Part<'a>) -> Result<Guard<'a>, Box<Error>> {
        let control = part.memory.control();
        control.lock_waits.fetch_add(1, Ordering::Relaxed);
        control
            .lock
            .lock(Timeout::Val(self.lock_patience()))
            .map_err(|error| self.lock_failure(part, error))
    }

    #[cold]
    fn retired(&self) -> Box<Error> {
        Box::new(Error::Retired {
            path: self.path().to_owned(),
        })
    }

    #[cold]
    fn lock_failure(&self, part: Part<'_>, error: LockError) -> Box<Error> {
        let name = part.set.name.clone();
        Box::new(match error {
            LockError::TimedOut { holder } => Error::LockStuck {
                set: name,
                // A thread that is gone names no process, but its number is all there is to say.
                pid: holder.map(|thread| process_of_thread(thread).unwrap_or(thread)),
            },
            LockError::Unrecoverable => Error::LockLost { set: name },
            LockError::System(source) => Error::Io {
                action: "lock a set of",
                path: self.path().to_owned(),
                source,
            },
        })
    }
}
