//! A shard whose lock is held, and the one way to take it.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::segment_engine::SegmentEngine;
use super::set_engine::{RuledShard, Shard, ShardAt};
#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::queue::pending_wake::PendingWake;
#[cfg(feature = "tracing")]
use crate::engine::recover::recovery_report::Repairs;
use crate::error::{Error, OpenError, SegmentError};
use crate::limit::Now;
use crate::shm::lock::guard::{Guard, LockError};
use crate::shm::lock::lock_holder::LockHolder;
use crate::shm::probes;
use crate::shm::time::clock::boot_nanos;
use crate::units::NANOS_PER_SECOND;

/// How far ahead of a reading of the clock the latest time of a shard may be, in nanoseconds: an hour.
pub(in crate::engine) const MAX_AHEAD: u64 = 3600 * NANOS_PER_SECOND;

/// How long calls without a result wait for a lock, in nanoseconds.
pub(in crate::engine) const BRIEFLY: u64 = 10_000_000;

/// In place of a deadline: what others marked in the meantime is left to the next holder of the lock.
pub(in crate::engine) const NOTHING_MORE: u64 = u64::MAX;

/// How long an operation waits for a lock that another process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// The segment's lock timeout: for operations with a result.
    Timeout,
    /// 10 ms: for giving back, without a result.
    Briefly,
    /// Until an instant of the boot-time clock.
    Until(u64),
}

impl LockWait {
    /// Not at all.
    pub(crate) const NOT: Self = Self::Until(0);
}

impl<Rules> Shard<'_, Rules> {
    /// The instant at which to look at the shard: never before its latest change, unless that time is damage.
    pub(crate) fn instant(&self, now: Now) -> Now {
        let last_seen = self.memory.control().last_seen.load(Ordering::Relaxed);
        if last_seen.saturating_sub(now.monotonic) >= MAX_AHEAD {
            return now;
        }
        Now {
            monotonic: now.monotonic.max(last_seen),
            ..now
        }
    }
}

/// A shard whose lock is held.
pub(crate) struct LockedShard<'a> {
    pub(crate) engine: &'a SegmentEngine,
    /// Decides by the definition that the shard is on, which may be later than the latest one this process knew when it
    /// took the lock.
    pub(crate) shard: RuledShard<'a>,
    pub(crate) now: Now,
    /// This process as a participant.
    pub(crate) owner: u64,
    pub(super) guard: Guard<'a>,
    /// Dropped after the guard, so that a process is only woken when the lock is free.
    pub(in crate::engine) pending_wake: AfterUnlock<'a>,
}

/// A lock that was taken, before anything under it has been looked at. The fields are those of [`LockedShard`].
pub(in crate::engine) struct TakenLock<'a> {
    pub(super) guard: Guard<'a>,
    pub(in crate::engine) now: Now,
    pub(in crate::engine) owner: u64,
    /// See [`AfterUnlock`].
    deadline: u64,
}

impl TakenLock<'_> {
    /// See [`SegmentEngine::needs_attention`].
    #[inline(always)]
    pub(in crate::engine) fn needs_attention(&self, engine: &SegmentEngine, shard: RuledShard<'_>) -> bool {
        engine.needs_attention(shard, &self.guard)
    }

    /// Releases the lock, if nothing was changed that others wait for.
    #[inline(always)]
    pub(in crate::engine) fn release(self, engine: &SegmentEngine, shard: Shard<'_>) {
        drop(self.guard);
        engine.finish_marks_left_meanwhile(shard, self.deadline);
    }
}

/// What is left to do after the unlock: waking waiters, and giving back what was marked in the meantime.
pub(crate) struct AfterUnlock<'a> {
    engine: &'a SegmentEngine,
    shard: Shard<'a>,
    pub(in crate::engine) futex: Cell<Option<PendingWake<'a>>>,
    /// Whether the process on duty has to look whether to ask for more.
    pub(in crate::engine) wakes_duty: Cell<bool>,
    /// Until when it may take at most, on the boot-time clock; or [`NOTHING_MORE`]. Zero unless the lock was only had
    /// after a [brief](LockWait::Briefly) wait.
    pub(super) deadline: u64,
    /// For the subscriber, which is the program's code and must not run under the lock.
    #[cfg(feature = "tracing")]
    pub(super) repairs: Option<Repairs>,
}

impl Drop for AfterUnlock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(pending_wake) = self.futex.take() {
            self.engine.wake(self.shard, pending_wake, self.deadline);
        }
        if self.wakes_duty.get() {
            self.engine.wake_duty();
        }
        self.engine.finish_marks_left_meanwhile(self.shard, self.deadline);
        // After everything that others wait for: a subscriber may block or panic.
        #[cfg(feature = "tracing")]
        if let Some(repairs) = self.repairs.take() {
            contained(|| self.engine.trace_repairs(self.shard, &repairs));
        }
    }
}

impl<'a> LockedShard<'a> {
    #[inline(always)]
    pub(super) fn new(engine: &'a SegmentEngine, shard: Shard<'a>, taken: TakenLock<'a>) -> Self {
        Self {
            engine,
            // By the latest definition that this process knows: what the shard really needs is read under the lock.
            shard: shard.by(shard.set.shown()),
            now: taken.now,
            owner: taken.owner,
            guard: taken.guard,
            pending_wake: AfterUnlock {
                engine,
                shard,
                futex: Cell::new(None),
                wakes_duty: Cell::new(false),
                deadline: taken.deadline,
                #[cfg(feature = "tracing")]
                repairs: None,
            },
        }
    }
}

impl LockedShard<'_> {
    /// The shard at the instant it is decided by.
    #[inline(always)]
    pub(in crate::engine) fn at_its_instant(&self) -> ShardAt<'_> {
        self.shard.at(self.now)
    }

    /// Reads the clock again, for work beyond the operation that the lock was taken for.
    #[cold]
    pub(in crate::engine) fn read_clock(&mut self) {
        let last_seen = &self.shard.memory.control().last_seen;
        let now = self.engine.now(self.shard.unruled());
        let monotonic = now.monotonic.max(last_seen.load(Ordering::Relaxed));
        last_seen.store(monotonic, Ordering::Relaxed);
        self.now = Now { monotonic, ..now };
    }
}

impl SegmentEngine {
    /// Takes the shard's lock, and first puts right what a dead owner left behind.
    ///
    /// The clock is read before the lock is taken, to keep it out of the critical section. Only a process that had to
    /// wait for the lock reads it again.
    #[inline(always)]
    pub(crate) fn lock<'a>(&'a self, shard: Shard<'a>) -> Result<LockedShard<'a>, Box<Error>> {
        self.lock_within(shard, LockWait::Timeout)
    }

    /// Takes the lock only: no recovery, no migration.
    #[inline(always)]
    pub(in crate::engine) fn take_lock_to_decide<'a>(
        &'a self,
        shard: Shard<'a>,
    ) -> Result<TakenLock<'a>, Box<Error>> {
        let now = self.now(shard);
        self.refuse_if_removed(now)?;
        self.take_lock(shard, Some(now), LockWait::Timeout)
            .map_err(|error| self.explain(error))
    }

    /// Takes the lock to give something back: even if the segment was removed, and waiting only briefly. Without a
    /// reading of the clock, the instant is that of the shard's latest change. The locked shard is built in the
    /// caller's `place` and stays there: moving it would cost more than many an operation does.
    #[inline(always)]
    pub(in crate::engine) fn lock_briefly_into<'place, 'a>(
        &'a self,
        place: &'place mut Option<LockedShard<'a>>,
        shard: Shard<'a>,
        now: Option<Now>,
    ) -> Result<&'place mut LockedShard<'a>, Box<Error>> {
        Ok(place.insert(self.lock_at(shard, now, LockWait::Briefly)?))
    }

    /// Does what is needed first under a lock that was [taken to decide](Self::take_lock_to_decide). The locked shard
    /// is built in the caller's `place`.
    #[inline(always)]
    pub(in crate::engine) fn settle_into<'place, 'a>(
        &'a self,
        place: &'place mut Option<LockedShard<'a>>,
        shard: Shard<'a>,
        taken: TakenLock<'a>,
    ) -> Result<&'place mut LockedShard<'a>, Box<Error>> {
        if taken.needs_attention(self, shard.by(shard.set.shown())) {
            let attended = self.attend(shard, taken, true, LockWait::Timeout);
            return Ok(place.insert(attended.map_err(|error| self.explain(error))?));
        }
        Ok(place.insert(LockedShard::new(self, shard, taken)))
    }

    /// Takes the lock like [`lock`](Self::lock), and waits for it as long as `wait` says.
    #[inline(always)]
    pub(in crate::engine) fn lock_within<'a>(
        &'a self,
        shard: Shard<'a>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let now = self.now(shard);
        self.lock_to_take(shard, now, wait)
    }

    /// Takes the lock to give something back or put it right: even if the segment was removed.
    #[inline(always)]
    pub(in crate::engine) fn lock_to_give_back<'a>(
        &'a self,
        shard: Shard<'a>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let now = self.now(shard);
        self.lock_at(shard, Some(now), wait)
    }

    /// Takes the lock as of an instant that was read before, so that several shards can share it. If a shard was
    /// changed later than that, the instant is that of the change.
    #[inline]
    pub(in crate::engine) fn lock_as_of<'a>(
        &'a self,
        shard: Shard<'a>,
        now: Now,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        self.lock_to_take(shard, now, LockWait::Timeout)
    }

    #[inline(always)]
    fn lock_to_take<'a>(
        &'a self,
        shard: Shard<'a>,
        now: Now,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        self.refuse_if_removed(now)?;
        self.lock_at(shard, Some(now), wait).map_err(|error| {
            // If the lock was only tried, that it is taken needs no explanation.
            if wait == LockWait::NOT {
                error
            } else {
                self.explain(error)
            }
        })
    }

    /// Takes the lock for what does not depend on time, even if the segment was removed. The clock is not read: the
    /// instant is that of the shard's latest change.
    #[inline(always)]
    pub(crate) fn lock_timeless<'a>(
        &'a self,
        shard: Shard<'a>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        self.lock_at(shard, None, wait)
    }

    #[inline(always)]
    fn lock_at<'a>(
        &'a self,
        shard: Shard<'a>,
        now: Option<Now>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let taken = self.take_lock(shard, now, wait)?;
        if taken.needs_attention(self, shard.by(shard.set.shown())) {
            return self.attend(shard, taken, now.is_some(), wait);
        }
        Ok(LockedShard::new(self, shard, taken))
    }

    /// Takes the lock only to look, and leaves no trace of when.
    #[inline]
    pub(in crate::engine) fn lock_to_look<'a>(
        &'a self,
        shard: Shard<'a>,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let now = self.now(shard);
        self.refuse_if_removed(now)?;
        let mut locked = self.lock_timeless(shard, LockWait::Timeout)?;
        locked.now = locked.shard.instant(now);
        Ok(locked)
    }

    #[inline(always)]
    pub(super) fn take_lock<'a>(
        &'a self,
        shard: Shard<'a>,
        mut reading: Option<Now>,
        wait: LockWait,
    ) -> Result<TakenLock<'a>, Box<Error>> {
        // Locks are initialised anew while there are no participants, so a forked child becomes one before it takes any
        // lock. In other namespaces than the segment's it cannot.
        let owner = self.membership.owner()?;
        let control = shard.memory.control();
        let mut deadline = 0;
        let guard = match self.membership.try_lock(&control.lock, owner) {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                if wait == LockWait::Briefly {
                    deadline = boot_nanos().saturating_add(BRIEFLY);
                }
                let guard = self.wait_for_lock(shard, owner, wait)?;
                // The wait may have been long, and the decision is made now.
                reading = reading.map(|_| self.now(shard));
                guard
            }
            Err(error) => return Err(self.lock_failure(shard, error)),
        };
        let last_seen = control.last_seen.load(Ordering::Relaxed);
        let now = match reading {
            Some(now) if now.monotonic > last_seen => {
                control.last_seen.store(now.monotonic, Ordering::Relaxed);
                now
            }
            // Another process may have read a later time and been here first: within a shard, time never runs
            // backwards.
            Some(now) if last_seen - now.monotonic < MAX_AHEAD => Now {
                monotonic: last_seen,
                ..now
            },
            Some(_) => self.now_despite(shard, last_seen),
            None => Now {
                monotonic: last_seen,
                utc: 0,
            },
        };
        Ok(TakenLock {
            guard,
            now,
            owner,
            deadline,
        })
    }

    #[inline(always)]
    pub(in crate::engine) fn now(&self, shard: Shard<'_>) -> Now {
        self.read_clocks(shard.set.reads_utc)
    }

    /// The time at which the shard would be changed now, on the segment clock, for a caller that does not lock it.
    pub(in crate::engine) fn now_without_lock(&self, shard: Shard<'_>) -> u64 {
        let now = self.segment_nanos();
        let last_seen = shard.memory.control().last_seen.load(Ordering::Relaxed);
        if last_seen.saturating_sub(now) < MAX_AHEAD {
            now.max(last_seen)
        } else {
            now
        }
    }

    /// The time if the latest time of the shard is far ahead of a reading. Either this process was stopped after it had
    /// read the clock, or the latest time is damage, because nobody can have read a time that is yet to come.
    #[cold]
    fn now_despite(&self, shard: Shard<'_>, last_seen: u64) -> Now {
        let now = Now {
            // The processor's counter may be what is wrong.
            monotonic: self.system_nanos(),
            ..self.now(shard)
        };
        if last_seen.saturating_sub(now.monotonic) < MAX_AHEAD {
            let monotonic = now.monotonic.max(last_seen);
            return Now { monotonic, ..now };
        }
        shard
            .memory
            .control()
            .last_seen
            .store(now.monotonic, Ordering::Relaxed);
        now
    }

    #[cold]
    fn wait_for_lock<'a>(
        &self,
        shard: Shard<'a>,
        owner: u64,
        wait: LockWait,
    ) -> Result<Guard<'a>, Box<Error>> {
        let longest = match wait {
            LockWait::Timeout => Duration::MAX,
            LockWait::Briefly => Duration::from_nanos(BRIEFLY),
            LockWait::Until(instant) => Duration::from_nanos(instant.saturating_sub(boot_nanos())),
        };
        let control = shard.memory.control();
        let mut measured_from = None;
        if !longest.is_zero() {
            control.lock_waits.fetch_add(1, Ordering::Relaxed);
            measured_from = probes::lock_wait::is_attached().then(boot_nanos);
        }
        let locked = self
            .membership
            .lock(&control.lock, owner, longest.min(self.lock_timeout()));
        if let (Some(began), Ok(_)) = (measured_from, &locked) {
            let waited = boot_nanos().saturating_sub(began);
            probes::lock_wait::fire(|| (self.path(), &shard.set.name, waited));
        }
        // A call that only waits briefly leaves a mark and carries on, so it isn't stuck.
        #[cfg(feature = "tracing")]
        if let (LockWait::Timeout, Err(LockError::TimedOut { holder })) = (wait, &locked) {
            let holder_pid = holder.and_then(LockHolder::named).map(|process| process.pid);
            contained(|| {
                tracing::error!(
                    path = %self.path().display(),
                    set = &*shard.set.name,
                    holder_pid,
                    "lock_stuck"
                );
            });
        }
        locked.map_err(|error| self.lock_failure(shard, error))
    }

    #[cfg(feature = "tracing")]
    #[cold]
    fn trace_repairs(&self, shard: Shard<'_>, repairs: &Repairs) {
        tracing::warn!(
            path = %self.path().display(),
            set = &*shard.set.name,
            owner_died = repairs.owner_died,
            undone_words = repairs.undone_words,
            finished_reset = repairs.finished_reset,
            rebuilt = repairs.rebuilt,
            poisoned = repairs.poisoned,
            "recovered"
        );
    }

    #[cold]
    pub(super) fn lock_failure(&self, shard: Shard<'_>, error: LockError) -> Box<Error> {
        let name = shard.set.name.to_string();
        Box::new(match error {
            LockError::TimedOut { holder } => Error::Segment(SegmentError::LockStuck {
                set: name,
                process: holder.and_then(LockHolder::named),
            }),
            LockError::Unrecoverable => Error::Segment(SegmentError::LockLost { set: name }),
            LockError::System(source) => Error::Open(OpenError::Io {
                action: "lock a set of",
                path: self.path().to_owned(),
                source,
            }),
        })
    }
}
