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

/// How far ahead of a reading of the clock the latest time of a part may be, in nanoseconds: an hour.
pub(in crate::engine) const MAX_AHEAD: u64 = 3600 * NANOS_PER_SECOND;

/// How long calls without a result wait for a lock, in nanoseconds.
pub(in crate::engine) const BRIEFLY: u64 = 10_000_000;

/// In place of a deadline: whatever others left meanwhile is left to those who come.
pub(in crate::engine) const NOTHING_MORE: u64 = u64::MAX;

/// How long an operation waits for a lock that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// As long as the segment was opened to: for what has a result.
    Timeout,
    /// 10 ms: for what gives back and has no result.
    Briefly,
    /// Until an instant of the boot-time clock.
    Until(u64),
}

impl LockWait {
    /// Not at all.
    pub(crate) const NOT: Self = Self::Until(0);
}

impl<Rules> Shard<'_, Rules> {
    /// An instant for looking at the shard: never before its latest change, unless the time of that is damage.
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
    /// Decides by the definition that the shard is of, which may be a later one than the process that locked it knew
    /// of.
    pub(crate) shard: RuledShard<'a>,
    pub(crate) now: Now,
    /// The participant that this process is.
    pub(crate) owner: u64,
    pub(super) guard: Guard<'a>,
    /// Dropped after the guard: the process that is to be woken is woken when the lock is free.
    pub(in crate::engine) pending_wake: AfterUnlock<'a>,
}

/// A lock that was taken, and what is known of it: see [`LockedShard`]. Nothing has been looked at yet.
pub(in crate::engine) struct TakenLock<'a> {
    pub(super) guard: Guard<'a>,
    pub(in crate::engine) now: Now,
    pub(in crate::engine) owner: u64,
    /// As in [`AfterUnlock`].
    deadline: u64,
}

impl TakenLock<'_> {
    /// As [`SegmentEngine::needs_attention`].
    #[inline(always)]
    pub(in crate::engine) fn needs_attention(&self, engine: &SegmentEngine, shard: RuledShard<'_>) -> bool {
        engine.needs_attention(shard, &self.guard)
    }

    /// Releases the lock where nothing was changed that others wait for.
    #[inline(always)]
    pub(in crate::engine) fn release(self, engine: &SegmentEngine, shard: Shard<'_>) {
        drop(self.guard);
        engine.finish_marks_left_meanwhile(shard, self.deadline);
    }
}

/// What is left to do once the lock has been released: waking waiters, and giving back what was marked meanwhile.
pub(crate) struct AfterUnlock<'a> {
    engine: &'a SegmentEngine,
    shard: Shard<'a>,
    pub(in crate::engine) futex: Cell<Option<PendingWake<'a>>>,
    /// Whether the process that has duty is to look whether it has to ask for more.
    pub(in crate::engine) wakes_duty: Cell<bool>,
    /// Until when it may take at most, on the boot-time clock; zero where nothing was waited for yet.
    pub(super) deadline: u64,
    /// For the subscriber, which is code of the program and must not run under the lock.
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
        // Behind what others wait for: a subscriber may block or panic.
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
            // As far as this process has heard: what needs attention is read under the lock.
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
    /// The shard at the instant that is decided by.
    #[inline(always)]
    pub(in crate::engine) fn at_its_instant(&self) -> ShardAt<'_> {
        self.shard.at(self.now)
    }

    /// Reads the clock again: for what goes on after the operation that the lock was taken for.
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
    /// Takes the shard's lock, first setting right what a dead owner left behind.
    ///
    /// The clock is read before the lock is taken, so that it is not part of the critical section.
    #[inline(always)]
    pub(crate) fn lock<'a>(&'a self, shard: Shard<'a>) -> Result<LockedShard<'a>, Box<Error>> {
        self.lock_within(shard, LockWait::Timeout)
    }

    /// As [`lock`](Self::lock), and nothing more than that: what has to be seen to is not seen to yet.
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

    /// As [`lock`](Self::lock), into a place of the caller's, where the shard stays: it is larger than what many an operation
    /// does. For what gives back: also where the segment was removed, and briefly. Where there is
    /// no reading of the clock, the instant is the latest at which the shard was changed.
    #[inline(always)]
    pub(in crate::engine) fn lock_briefly_into<'place, 'a>(
        &'a self,
        place: &'place mut Option<LockedShard<'a>>,
        shard: Shard<'a>,
        now: Option<Now>,
    ) -> Result<&'place mut LockedShard<'a>, Box<Error>> {
        Ok(place.insert(self.lock_at(shard, now, LockWait::Briefly)?))
    }

    /// Sees to what there is to be seen to of a lock that was [taken to decide](Self::take_lock_to_decide), into a place of
    /// the caller's.
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

    /// As [`lock`](Self::lock), waiting for it as long as `wait` says.
    #[inline(always)]
    pub(in crate::engine) fn lock_within<'a>(
        &'a self,
        shard: Shard<'a>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let now = self.now(shard);
        self.lock_to_take(shard, now, wait)
    }

    /// As [`lock_within`](Self::lock_within), for what gives back or sets right: also where the segment was removed.
    #[inline(always)]
    pub(in crate::engine) fn lock_to_give_back<'a>(
        &'a self,
        shard: Shard<'a>,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let now = self.now(shard);
        self.lock_at(shard, Some(now), wait)
    }

    /// As [`lock`](Self::lock), for an instant that was read before: for several shards at one instant. Where a shard
    /// was changed later already, the instant is that.
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
            // Where the lock is only tried, that it is taken says nothing.
            if wait == LockWait::NOT {
                error
            } else {
                self.explain(error)
            }
        })
    }

    /// As [`lock_to_give_back`](Self::lock_to_give_back), for what does not depend on time: the clock is not read, and the instant is
    /// the latest at which the shard was changed.
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

    /// As [`lock`](Self::lock), for what only looks: it leaves no trace of when it looked.
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
        // Locks are made anew while there are no participants, so a forked child becomes one before it takes any. In
        // other namespaces than the segment's it cannot.
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
                // The wait may have been long: what is decided is decided now.
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
            // Another process may have read a later time and been here first: within a shard time never runs backwards.
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

    /// The time on the segment clock by which the shard would be changed now, for a caller that does not lock it.
    pub(in crate::engine) fn now_without_lock(&self, shard: Shard<'_>) -> u64 {
        let now = self.segment_nanos();
        let last_seen = shard.memory.control().last_seen.load(Ordering::Relaxed);
        if last_seen.saturating_sub(now) < MAX_AHEAD {
            now.max(last_seen)
        } else {
            now
        }
    }

    /// The time where the latest of the shard is far ahead of a reading: this process was stopped after it had read
    /// the clock, or the latest is damage, because no process can have read a time that is yet to come.
    #[cold]
    fn now_despite(&self, shard: Shard<'_>, last_seen: u64) -> Now {
        let now = Now {
            // The counter is what may be wrong.
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
        // A call that waits briefly leaves a mark and goes on: nothing is stuck for it.
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
