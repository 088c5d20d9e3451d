//! A shard whose lock is held, and how to take the lock: [`SegmentEngine::lock`] is told [what for](LockFor) and
//! [how long to wait](LockWait). The fast path takes the [bare lock](BareLock) first.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::shard::pending_wake::PendingWake;
use crate::engine::shard::recovery_report::Repairs;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard, ShardAt};
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

/// In place of a deadline: marks that others left in the meantime are left to the next holder of the lock.
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

/// What a shard's lock is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockFor {
    /// To take something, at an instant that is read now.
    Decide,
    /// To take something, at an instant that was read before, so that several shards can share it. If a shard was
    /// changed later than that, the instant is that of the change.
    DecideAt(Now),
    /// To see what would be decided. The instant is not recorded in the shard.
    Look,
    /// To give something back, or to finish what others left.
    GiveBack,
    /// For what does not depend on time. The clock is not read: the instant is that of the shard's latest change.
    Timeless,
    /// To repair. Accepts a poisoned shard, leaves marks and queues to the caller, and keeps
    /// [what was repaired](LockedShard::repairs).
    Repair,
}

impl LockFor {
    /// Whether the segment must not have been removed. Permits are settled and released in the file they were taken
    /// from, even if that was removed.
    #[inline(always)]
    fn needs_present_segment(self) -> bool {
        !matches!(self, Self::GiveBack | Self::Timeless)
    }

    /// Whether the instant is recorded in the shard, so that no later change is dated before it.
    #[inline(always)]
    pub(super) fn sets_instant(self) -> bool {
        !matches!(self, Self::Look | Self::Timeless)
    }
}

impl<Rules> Shard<'_, Rules> {
    /// The instant at which to look at the shard: never before its latest change, unless the time of that change is
    /// damaged.
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

/// A shard whose lock is held. Collects the work that is left for after the unlock, such as waking waiters. Dropping it
/// releases the lock and then does that work.
pub(crate) struct LockedShard<'a> {
    pub(crate) engine: &'a SegmentEngine,
    /// The shard, and the instant to decide by. The shard's definition may be later than the latest one this process
    /// knew when it took the lock.
    pub(in crate::engine) at: ShardAt<'a>,
    /// This process as a participant.
    pub(crate) owner: u64,
    /// `None` only in `drop`.
    guard: Option<Guard<'a>>,
    /// The waiter to wake, if any.
    pub(in crate::engine) pending_wake: Cell<Option<PendingWake<'a>>>,
    /// Whether to wake the process on duty, so that it checks whether to ask for more.
    pub(in crate::engine) wakes_duty: Cell<bool>,
    /// When the work after the unlock has to end, on the boot-time clock; or [`NOTHING_MORE`]. Zero unless the lock was
    /// taken after a [brief](LockWait::Briefly) wait.
    deadline: u64,
    /// What was repaired when the lock was taken.
    pub(super) repairs: Option<Repairs>,
}

/// The bare lock of a shard, before anything under it has been looked at. Only the [fast
/// path](crate::engine::admit::plain) decides under it: it is small enough to stay in registers, which a
/// [`LockedShard`] is not.
pub(in crate::engine) struct BareLock<'a> {
    guard: Guard<'a>,
    pub(in crate::engine) now: Now,
    pub(in crate::engine) owner: u64,
    deadline: u64,
}

impl<'a> BareLock<'a> {
    /// Whether anything has to be done before the shard is used. Checks everything at once, because the answer is
    /// nearly always no.
    #[inline(always)]
    pub(in crate::engine) fn needs_attention(&self, engine: &SegmentEngine, shard: RuledShard<'_>) -> bool {
        let control = shard.memory.control();
        let words = control.poisoned.load(Ordering::Relaxed)
            | control.marks.load(Ordering::Relaxed)
            | shard.memory.journal().unfinished()
            | engine.difference_from_definition(shard);
        words != 0 || self.guard.owner_died()
    }

    /// Releases the lock, after an operation that changed nothing others wait for.
    #[inline(always)]
    pub(in crate::engine) fn release(self, engine: &SegmentEngine, shard: Shard<'_>) {
        drop(self.guard);
        engine.finish_marks_left_meanwhile(shard, self.deadline);
    }

    /// The locked shard, with the rules of the latest definition that this process knows. If it is on another one, it
    /// [needs attention](Self::needs_attention).
    #[inline(always)]
    pub(in crate::engine) fn of(self, engine: &'a SegmentEngine, shard: Shard<'a>) -> LockedShard<'a> {
        LockedShard {
            engine,
            at: shard.by(shard.set.shown()).at(self.now),
            owner: self.owner,
            guard: Some(self.guard),
            pending_wake: Cell::new(None),
            wakes_duty: Cell::new(false),
            deadline: self.deadline,
            repairs: None,
        }
    }
}

impl<'a> Deref for LockedShard<'a> {
    type Target = ShardAt<'a>;

    #[inline(always)]
    fn deref(&self) -> &ShardAt<'a> {
        &self.at
    }
}

impl Drop for LockedShard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // First, so that a waiter is only woken when the lock is free.
        drop(self.guard.take());
        let shard = self.shard.unruled();
        if let Some(pending_wake) = self.pending_wake.take() {
            self.engine.wake(shard, pending_wake, self.deadline);
        }
        if self.wakes_duty.get() {
            self.engine.wake_duty();
        }
        self.engine.finish_marks_left_meanwhile(shard, self.deadline);
        // After everything that others wait for: a subscriber is the program's code, and may block or panic.
        #[cfg(feature = "tracing")]
        if let Some(repairs) = self.repairs.take() {
            contained(|| self.engine.trace_repairs(shard, &repairs));
        }
    }
}

impl LockedShard<'_> {
    /// Whether the lock's previous owner died holding it.
    #[inline(always)]
    pub(super) fn lock_was_of_dead(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::owner_died)
    }

    /// What was repaired when the lock was taken, if anything was.
    pub(in crate::engine) fn repairs(&self) -> Option<Repairs> {
        self.repairs
    }

    /// Leaves marks that are found after the unlock to the next holder of the lock.
    pub(in crate::engine) fn leave_marks(&mut self) {
        self.deadline = NOTHING_MORE;
    }

    /// Reads the clock again, for work that goes beyond what the lock was taken for.
    #[cold]
    pub(in crate::engine) fn read_clock(&mut self) {
        let last_seen = &self.shard.memory.control().last_seen;
        let now = self.engine.now(self.shard.unruled());
        let monotonic = now.monotonic.max(last_seen.load(Ordering::Relaxed));
        last_seen.store(monotonic, Ordering::Relaxed);
        self.at.now = Now { monotonic, ..now };
    }
}

impl SegmentEngine {
    /// Takes a shard's lock, and [attends](Self::attend) to whatever others left in the shard.
    ///
    /// The clock is read before the lock is taken, to keep it out of the critical section. Only a process that had to
    /// wait for the lock reads it again.
    #[inline(always)]
    pub(crate) fn lock<'a>(
        &'a self,
        shard: Shard<'a>,
        purpose: LockFor,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let reading = match purpose {
            LockFor::Timeless => None,
            LockFor::DecideAt(now) => Some(now),
            LockFor::Decide | LockFor::Look | LockFor::GiveBack | LockFor::Repair => Some(self.now(shard)),
        };
        if let Some(now) = reading
            && purpose.needs_present_segment()
        {
            self.refuse_if_removed(now)?;
        }
        // If the lock was only tried, another process may well hold it: that needs no explanation.
        let explains = purpose.needs_present_segment() && wait != LockWait::NOT;
        let explained = |error| if explains { self.explain(error) } else { error };
        let set_instant = reading.filter(|_| purpose.sets_instant());
        let bare = self.take_lock(shard, set_instant, wait).map_err(explained)?;
        let needs_attention = bare.needs_attention(self, shard.by(shard.set.shown()));
        let mut locked = bare.of(self, shard);
        if needs_attention {
            locked = self.attend(locked, purpose, wait).map_err(explained)?;
        }
        if let (LockFor::Look, Some(now)) = (purpose, reading) {
            locked.at.now = locked.shard.instant(now);
        }
        Ok(locked)
    }

    /// Takes the bare lock to decide. If the request is not plain, [`open`](Self::open) follows.
    #[inline(always)]
    pub(in crate::engine) fn take_bare_lock<'a>(
        &'a self,
        shard: Shard<'a>,
    ) -> Result<BareLock<'a>, Box<Error>> {
        let now = self.now(shard);
        self.refuse_if_removed(now)?;
        self.take_lock(shard, Some(now), LockWait::Timeout)
            .map_err(|error| self.explain(error))
    }

    /// Attends to what others left in a shard whose bare lock was taken to decide.
    #[inline(always)]
    pub(in crate::engine) fn open<'a>(
        &'a self,
        shard: Shard<'a>,
        bare: BareLock<'a>,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let needs_attention = bare.needs_attention(self, shard.by(shard.set.shown()));
        let mut locked = bare.of(self, shard);
        if needs_attention {
            let attended = self.attend(locked, LockFor::Decide, LockWait::Timeout);
            locked = attended.map_err(|error| self.explain(error))?;
        }
        Ok(locked)
    }

    /// Takes the lock only: no recovery, no migration. Without a `reading` of the clock, the instant is that of the
    /// shard's latest change.
    #[inline(always)]
    pub(super) fn take_lock<'a>(
        &'a self,
        shard: Shard<'a>,
        mut reading: Option<Now>,
        wait: LockWait,
    ) -> Result<BareLock<'a>, Box<Error>> {
        // Locks are recreated while there are no participants, so a forked child has to become one before it takes a
        // lock. In namespaces other than the segment's it cannot, and this fails.
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
        Ok(BareLock {
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

    /// The time to decide by if the shard's latest time is far ahead of a reading. Either this process was stopped
    /// after it had read the clock, or the latest time is damage, because nobody can have read a time that is yet to
    /// come.
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
