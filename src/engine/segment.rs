//! An attached segment: its sets, and the one way to take a set's lock.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raw_sync::Timeout;

use super::plan::{Kind, SetPlan};
use super::recover::Repairs;
use super::view::{SetView, StateWords};
use crate::clock::{boot_nanos, utc_nanos};
use crate::error::Error;
use crate::limit::{Now, Rule};
use crate::shm::attach::{Attached, damaged};
use crate::shm::geometry::{SetGeometry, SetShape};
use crate::shm::host::process_of_thread;
use crate::shm::journal::{JournalOverflow, JournalState};
use crate::shm::layout::{Header, MOST_LIMITS};
use crate::shm::participant::Membership;
use crate::shm::region::Region;
use crate::shm::robust_mutex::{Guard, LockError};

/// A set of an attached segment: how it decides, and where it lies.
#[derive(Debug)]
pub(crate) struct SetEngine {
    pub(crate) plan: SetPlan,
    pub(crate) geometry: SetGeometry,
    /// Which of the set's state words each limit has.
    state_ranges: Vec<Range<usize>>,
    /// For each word of a hold's amounts, the limit it belongs to.
    pub(crate) held_limits: Vec<usize>,
    /// The first limit without a default cost.
    pub(crate) first_rate: Option<usize>,
    reads_utc: bool,
    /// When this process may look for dead holders again, on the boot-time clock.
    pub(crate) next_probe: AtomicU64,
}

/// An attached segment.
#[derive(Debug)]
pub(crate) struct SegmentEngine {
    path: PathBuf,
    region: Arc<Region>,
    pub(crate) membership: Membership,
    clock_offset: u64,
    lock_patience: Duration,
    sets: Vec<SetEngine>,
}

/// A set whose lock is held.
pub(crate) struct LockedSet<'a> {
    pub(crate) view: SetView<'a>,
    pub(crate) set: &'a SetEngine,
    pub(crate) now: Now,
    _guard: Guard<'a>,
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
        }
    }
}

impl SetEngine {
    pub(crate) fn new(plan: SetPlan, geometry: SetGeometry) -> Self {
        let mut start = 0;
        let state_ranges = plan
            .limits
            .iter()
            .map(|limit| {
                let range = start..start + limit.rule.state_words();
                start = range.end;
                range
            })
            .collect();
        let reads_utc = plan.limits.iter().any(|limit| limit.rule.reads_utc());
        let held_limits = plan.held_limits();
        let first_rate = plan.limits.iter().position(|limit| limit.kind == Kind::Rate);
        Self {
            plan,
            geometry,
            state_ranges,
            held_limits,
            first_rate,
            reads_utc,
            next_probe: AtomicU64::new(0),
        }
    }

    /// The name of a limit.
    pub(crate) fn limit_name(&self, index: usize) -> String {
        self.plan
            .limits
            .get(index)
            .map_or_else(String::new, |limit| limit.name.clone())
    }

    /// The rule of a limit and its state words.
    #[inline]
    pub(crate) fn limit<'a>(
        &'a self,
        view: &SetView<'a>,
        index: usize,
    ) -> Option<(&'a Rule, StateWords<'a>)> {
        let words = view.state.get(self.state_ranges.get(index)?.clone())?;
        Some((&self.plan.limits.get(index)?.rule, StateWords(words)))
    }

    /// The bit mask of all limits.
    pub(crate) fn all_limits(&self) -> u64 {
        debug_assert!(self.plan.limits.len() <= MOST_LIMITS);
        (1 << self.plan.limits.len()) - 1
    }

    pub(crate) fn internal_error(&self, _: JournalOverflow) -> Error {
        Error::Internal {
            set: self.plan.name.clone(),
            what: "an operation changed more words than its journal holds",
        }
    }
}

impl SegmentEngine {
    /// Puts the compiled sets onto an attached segment. Their shapes have been compared with its directory.
    pub(crate) fn new(path: &Path, attached: Attached, plans: Vec<SetPlan>, lock_patience: Duration) -> Self {
        let Attached {
            verified,
            membership,
            clock_offset,
        } = attached;
        let sets = plans
            .into_iter()
            .zip(&verified.geometry.sets)
            .map(|(plan, geometry)| SetEngine::new(plan, *geometry))
            .collect();
        Self {
            path: path.to_owned(),
            region: verified.region,
            membership,
            clock_offset,
            lock_patience,
            sets,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn sets(&self) -> &[SetEngine] {
        &self.sets
    }

    pub(crate) fn clock_offset(&self) -> u64 {
        self.clock_offset
    }

    pub(crate) fn header(&self) -> Result<&Header, Error> {
        self.region.record(0).map_err(|place| damaged(&self.path, place))
    }

    /// Marks the segment as no longer to be used; every later operation of any process says so.
    pub(crate) fn retire(&self) -> Result<(), Error> {
        self.header()?.retired.store(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn view<'a>(&'a self, set: &'a SetEngine) -> Result<SetView<'a>, Error> {
        SetView::new(&self.region, &set.geometry).map_err(|place| damaged(&self.path, place))
    }

    /// Takes the set's lock, first setting right what a dead owner left behind.
    #[inline]
    pub(crate) fn lock<'a>(&'a self, set: &'a SetEngine) -> Result<LockedSet<'a>, Error> {
        let (locked, _) = self.lock_and_report(set)?;
        if locked.view.control.poisoned.load(Ordering::Relaxed) != 0 {
            return Err(Error::Poisoned {
                set: set.plan.name.clone(),
            });
        }
        Ok(locked)
    }

    /// As [`lock`](Self::lock), but takes poisoned sets as well, and says what had to be repaired.
    #[inline]
    pub(crate) fn lock_and_report<'a>(
        &'a self,
        set: &'a SetEngine,
    ) -> Result<(LockedSet<'a>, Option<Repairs>), Error> {
        if self.header()?.retired.load(Ordering::Relaxed) != 0 {
            return Err(Error::Retired {
                path: self.path.clone(),
            });
        }
        let view = self.view(set)?;
        // Read before the lock is taken, so that the system's clock is not part of the critical section.
        let mut now = Now {
            monotonic: boot_nanos().wrapping_add(self.clock_offset),
            utc: if set.reads_utc { utc_nanos() } else { 0 },
        };
        let guard = match view.control.lock.lock(Timeout::Val(self.lock_patience)) {
            Ok(guard) => guard,
            Err(error) => return Err(self.lock_failure(set, error)),
        };
        let repairs = if guard.owner_died() || view.journal.state() != JournalState::Idle {
            Some(self.recover(set, &view, guard.owner_died()))
        } else {
            None
        };
        // Another process may have read a later time and been here first: within a set time never runs backwards.
        let last_seen = view.control.last_seen.load(Ordering::Relaxed);
        if now.monotonic > last_seen {
            view.control.last_seen.store(now.monotonic, Ordering::Relaxed);
        } else {
            now.monotonic = last_seen;
        }
        Ok((
            LockedSet {
                view,
                set,
                now,
                _guard: guard,
            },
            repairs,
        ))
    }

    #[cold]
    fn lock_failure(&self, set: &SetEngine, error: LockError) -> Error {
        let name = set.plan.name.clone();
        match error {
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
        }
    }
}
