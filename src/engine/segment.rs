//! An attached segment: its sets, and the one way to take a set's lock.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raw_sync::Timeout;

use super::bell::Rung;
use super::limit_engine::LimitEngine;
use super::memory::SetMemory;
use super::plan::{Kind, SetPlan};
use super::recover::Repairs;
use crate::error::Error;
use crate::limit::Now;
use crate::shm::attach::{Attached, damaged};
use crate::shm::clock::{boot_nanos, utc_nanos};
use crate::shm::geometry::{SetGeometry, SetShape};
use crate::shm::host::process_of_thread;
use crate::shm::journal::{JournalOverflow, JournalState, Transaction};
use crate::shm::layout::{Header, LimitCounters, MOST_LIMITS, SET_UNCHECKED};
use crate::shm::participant::Membership;
use crate::shm::region::{Kept, OutOfRegion, Region};
use crate::shm::robust_mutex::{Guard, LockError};
use crate::shm::virtual_clock::VirtualClock;
use crate::units::NANOS_PER_SECOND;

/// How far ahead of a reading of the clock the latest time of a set may be, in nanoseconds: an hour.
const MOST_AHEAD: u64 = 3600 * NANOS_PER_SECOND;

/// A set of an attached segment, or a copy of one: how it decides, and where it lies.
#[derive(Debug)]
pub(crate) struct SetEngine {
    pub(crate) plan: SetPlan,
    pub(crate) geometry: SetGeometry,
    pub(crate) memory: SetMemory,
    pub(crate) limits: Vec<LimitEngine>,
    /// For each word of a hold's amounts, the limit it belongs to.
    pub(crate) held_indexes: Vec<usize>,
    /// The same limits as a bit mask.
    pub(crate) held_mask: u32,
    /// The first limit without a default cost.
    pub(crate) first_rate: Option<usize>,
    /// Whether holds can run out.
    pub(crate) has_leases: bool,
    reads_utc: bool,
    /// When this process may look for dead holders again, on the boot-time clock.
    pub(crate) next_probe: AtomicU64,
}

/// An attached segment.
#[derive(Debug)]
pub(crate) struct SegmentEngine {
    path: PathBuf,
    region: Arc<Region>,
    header: Kept<Header>,
    pub(crate) membership: Membership,
    clock_offset: u64,
    /// What tells the time instead of the kernel.
    pub(super) virtual_clock: Option<VirtualClock>,
    lock_patience: Duration,
    sets: Vec<SetEngine>,
}

/// A set whose lock is held.
pub(crate) struct LockedSet<'a> {
    pub(crate) engine: &'a SegmentEngine,
    pub(crate) set: &'a SetEngine,
    pub(crate) now: Now,
    guard: Guard<'a>,
    /// Dropped after the guard: whoever is to be woken is woken when the lock is free.
    pub(super) rung: AfterUnlock<'a>,
}

/// Whom to wake once the lock has been let go of.
pub(crate) struct AfterUnlock<'a> {
    engine: &'a SegmentEngine,
    set: &'a SetEngine,
    pub(super) bell: Cell<Option<Rung<'a>>>,
}

impl Drop for AfterUnlock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(rung) = self.bell.take() {
            self.engine.wake(self.set, rung);
        }
    }
}

impl LockedSet<'_> {
    /// Reads the clock again: for what goes on after the operation that the lock was taken for.
    #[cold]
    pub(super) fn read_clock(&mut self) {
        let last_seen = &self.set.memory.control().last_seen;
        let now = self.engine.now(self.set);
        let monotonic = now.monotonic.max(last_seen.load(Ordering::Relaxed));
        last_seen.store(monotonic, Ordering::Relaxed);
        self.now = Now { monotonic, ..now };
    }

    /// Whether an operation was begun and not ended by whoever had the lock before, or might have been.
    #[inline]
    fn was_left_unfinished(&self) -> bool {
        self.guard.owner_died()
            || self.set.memory.journal().state() != JournalState::Idle
            || self.set.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNCHECKED
    }

    #[inline]
    fn needs_attention(&self) -> bool {
        self.was_left_unfinished() || self.set.memory.control().poisoned.load(Ordering::Relaxed) != 0
    }
}

impl SetPlan {
    /// For each word of a hold's amounts, the limit it belongs to: those that give back when the holder is gone.
    pub(crate) fn held_limits(&self) -> Vec<usize> {
        (0..self.limits.len())
            .filter(|index| {
                let limit = &self.limits[*index];
                limit.kind == Kind::Concurrency || limit.refund_on_death
            })
            .collect()
    }

    /// What the set needs in a segment, given the size of its definition text.
    pub(crate) fn shape(&self, definition_size: u64) -> SetShape {
        SetShape {
            definition_size,
            limits: self.limits.len() as u64,
            state_words: self
                .limits
                .iter()
                .map(|limit| limit.rule.state_words() as u64)
                .sum(),
            holds: u64::from(self.hold_capacity),
            held_amounts: self.held_limits().len() as u64,
            tickets: u64::from(self.waiters),
        }
    }
}

impl SetEngine {
    pub(crate) fn new(
        region: &Arc<Region>,
        geometry: SetGeometry,
        plan: SetPlan,
    ) -> Result<Self, OutOfRegion> {
        let mut state_offset = geometry.state_offset;
        let mut counters_offset = geometry.counters_offset;
        let mut limits = Vec::with_capacity(plan.limits.len());
        for limit in &plan.limits {
            limits.push(LimitEngine::locate(region, limit, state_offset, counters_offset)?);
            state_offset += 8 * limit.rule.state_words() as u64;
            counters_offset += size_of::<LimitCounters>() as u64;
        }
        let held_indexes = plan.held_limits();
        Ok(Self {
            memory: SetMemory::locate(region, &geometry)?,
            held_mask: held_indexes.iter().fold(0, |mask, index| mask | 1 << index),
            held_indexes,
            first_rate: limits.iter().position(|limit| limit.kind == Kind::Rate),
            has_leases: limits.iter().any(|limit| limit.lease.is_some()),
            reads_utc: limits.iter().any(|limit| limit.rule.reads_utc()),
            next_probe: AtomicU64::new(0),
            limits,
            geometry,
            plan,
        })
    }

    /// The limits that give back, in the order of a hold's amounts.
    #[inline]
    pub(crate) fn held_limits(&self) -> impl Iterator<Item = &LimitEngine> {
        self.held_indexes
            .iter()
            .filter_map(|index| self.limits.get(*index))
    }

    /// The name of a limit.
    pub(crate) fn limit_name(&self, index: usize) -> String {
        self.plan
            .limits
            .get(index)
            .map_or_else(String::new, |limit| limit.name.clone())
    }

    /// The bit mask of all limits.
    pub(crate) fn all_limits(&self) -> u32 {
        debug_assert!(self.plan.limits.len() <= MOST_LIMITS);
        (1 << self.plan.limits.len()) - 1
    }

    #[cold]
    pub(crate) fn poisoned(&self) -> Box<Error> {
        Box::new(Error::Poisoned {
            set: self.plan.name.clone(),
        })
    }

    /// Makes the changes of a transaction final.
    #[inline]
    pub(super) fn commit(&self, transaction: Transaction<'_>) -> Result<(), Box<Error>> {
        transaction
            .commit()
            .map_err(|overflow| self.internal_error(overflow))
    }

    #[cold]
    fn internal_error(&self, _: JournalOverflow) -> Box<Error> {
        Box::new(Error::Internal {
            set: self.plan.name.clone(),
            what: "an operation changed more words than its journal holds",
        })
    }
}

impl SegmentEngine {
    /// Puts the compiled sets onto an attached segment. Their shapes have been compared with its directory.
    pub(crate) fn new(
        path: &Path,
        attached: Attached,
        plans: Vec<SetPlan>,
        lock_patience: Duration,
        virtual_clock: Option<VirtualClock>,
    ) -> Result<Self, Error> {
        let Attached {
            verified,
            membership,
            clock_offset,
        } = attached;
        let region = verified.region;
        let outside = |place| damaged(path, place);
        let sets = plans
            .into_iter()
            .zip(verified.geometry.sets)
            .map(|(plan, geometry)| SetEngine::new(&region, geometry, plan))
            .collect::<Result<_, _>>()
            .map_err(outside)?;
        Ok(Self {
            path: path.to_owned(),
            header: region.keep_records(0, 1).map_err(outside)?,
            region,
            membership,
            clock_offset,
            virtual_clock,
            lock_patience,
            sets,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn sets(&self) -> &[SetEngine] {
        &self.sets
    }

    pub(crate) fn clock_offset(&self) -> u64 {
        self.clock_offset
    }

    /// An instant of the segment clock on the boot-time clock; the end of time stays that.
    pub(super) fn boot_instant(&self, instant: u64) -> u64 {
        if instant == u64::MAX {
            return instant;
        }
        instant.wrapping_sub(self.clock_offset)
    }

    /// The segment clock.
    #[inline]
    pub(super) fn segment_nanos(&self) -> u64 {
        match &self.virtual_clock {
            None => boot_nanos().wrapping_add(self.clock_offset),
            Some(clock) => clock.nanos(),
        }
    }

    /// The segment clock, and the wall clock where it matters.
    #[inline]
    pub(super) fn read_clocks(&self, reads_utc: bool) -> Now {
        let monotonic = self.segment_nanos();
        let utc = match &self.virtual_clock {
            _ if !reads_utc => 0,
            None => utc_nanos(),
            // Not read again: it may have been advanced, and it is one clock.
            Some(_) => monotonic,
        };
        Now { monotonic, utc }
    }

    /// Marks the segment as no longer to be used; every later operation of any process says so.
    pub(crate) fn retire(&self) {
        self.header[0].retired.store(1, Ordering::Release);
    }

    /// Takes the set's lock, first setting right what a dead owner left behind.
    ///
    /// The clock is read before the lock is taken, so that it is not part of the critical section.
    #[inline(always)]
    pub(crate) fn lock<'a>(&'a self, set: &'a SetEngine) -> Result<LockedSet<'a>, Box<Error>> {
        let now = self.now(set);
        self.lock_at(set, Some(now))
    }

    /// As [`lock`](Self::lock), for what does not depend on time: the clock is not read, and the instant is the
    /// latest at which the set was changed.
    #[inline]
    pub(crate) fn lock_timeless<'a>(&'a self, set: &'a SetEngine) -> Result<LockedSet<'a>, Box<Error>> {
        self.lock_at(set, None)
    }

    #[inline(always)]
    fn lock_at<'a>(&'a self, set: &'a SetEngine, now: Option<Now>) -> Result<LockedSet<'a>, Box<Error>> {
        let mut locked = self.lock_as_it_is(set, now)?;
        if locked.needs_attention() {
            self.attend(&mut locked)?;
        }
        Ok(locked)
    }

    /// As [`lock`](Self::lock), but takes poisoned sets as well, and says what had to be repaired.
    pub(crate) fn lock_and_report<'a>(
        &'a self,
        set: &'a SetEngine,
    ) -> Result<(LockedSet<'a>, Option<Repairs>), Box<Error>> {
        let locked = self.lock_as_it_is(set, Some(self.now(set)))?;
        let repairs = locked
            .was_left_unfinished()
            .then(|| self.recover(set, locked.guard.owner_died()));
        Ok((locked, repairs))
    }

    #[cold]
    fn attend(&self, locked: &mut LockedSet<'_>) -> Result<(), Box<Error>> {
        if locked.was_left_unfinished() {
            self.recover(locked.set, locked.guard.owner_died());
        }
        if locked.set.memory.control().poisoned.load(Ordering::Relaxed) != 0 {
            return Err(locked.set.poisoned());
        }
        // Whoever died may have freed something and not come to handing it on.
        locked.serve_next()
    }

    #[inline(always)]
    fn lock_as_it_is<'a>(
        &'a self,
        set: &'a SetEngine,
        mut reading: Option<Now>,
    ) -> Result<LockedSet<'a>, Box<Error>> {
        if self.header[0].retired.load(Ordering::Relaxed) != 0 {
            return Err(self.retired());
        }
        let control = set.memory.control();
        let guard = match control.lock.try_lock() {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                let guard = self.wait_for_lock(set)?;
                // The wait may have been long: what is decided is decided now.
                reading = reading.map(|_| self.now(set));
                guard
            }
            Err(error) => return Err(self.lock_failure(set, error)),
        };
        let last_seen = control.last_seen.load(Ordering::Relaxed);
        let now = match reading {
            Some(now) if now.monotonic > last_seen => {
                control.last_seen.store(now.monotonic, Ordering::Relaxed);
                now
            }
            // Another process may have read a later time and been here first: within a set time never runs backwards.
            Some(now) if last_seen - now.monotonic < MOST_AHEAD => Now {
                monotonic: last_seen,
                ..now
            },
            Some(_) => self.now_despite(set, last_seen),
            None => Now {
                monotonic: last_seen,
                utc: 0,
            },
        };
        Ok(LockedSet {
            engine: self,
            set,
            now,
            guard,
            rung: AfterUnlock {
                engine: self,
                set,
                bell: Cell::new(None),
            },
        })
    }

    #[inline(always)]
    fn now(&self, set: &SetEngine) -> Now {
        self.read_clocks(set.reads_utc)
    }

    /// The time where the latest of the set is far ahead of a reading: this process was stopped after it had read
    /// the clock, or the latest is damage, because nobody can have read a time that is yet to come.
    #[cold]
    fn now_despite(&self, set: &SetEngine, last_seen: u64) -> Now {
        let now = self.now(set);
        if last_seen.saturating_sub(now.monotonic) < MOST_AHEAD {
            let monotonic = now.monotonic.max(last_seen);
            return Now { monotonic, ..now };
        }
        set.memory
            .control()
            .last_seen
            .store(now.monotonic, Ordering::Relaxed);
        now
    }

    #[cold]
    fn wait_for_lock<'a>(&self, set: &'a SetEngine) -> Result<Guard<'a>, Box<Error>> {
        let lock = &set.memory.control().lock;
        lock.lock(Timeout::Val(self.lock_patience))
            .map_err(|error| self.lock_failure(set, error))
    }

    #[cold]
    fn retired(&self) -> Box<Error> {
        Box::new(Error::Retired {
            path: self.path.clone(),
        })
    }

    #[cold]
    fn lock_failure(&self, set: &SetEngine, error: LockError) -> Box<Error> {
        let name = set.plan.name.clone();
        Box::new(match error {
            LockError::TimedOut { holder } => Error::LockStuck {
                set: name,
                // A thread that is gone names no process, but its number is all there is to say.
                pid: holder.map(|thread| process_of_thread(thread).unwrap_or(thread)),
            },
            LockError::Unrecoverable => Error::LockLost { set: name },
            LockError::System(source) => Error::Io {
                action: "lock a set of",
                path: self.path.clone(),
                source,
            },
        })
    }
}
