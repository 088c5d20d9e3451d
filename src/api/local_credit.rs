//! Units that a process has taken in advance and spends by itself.

use std::sync::Arc;

use super::refusal::Refusal;
use super::segment::shared_segment::SharedSegment;
use super::set::limit_set::{LimitName, LimitSet};
use super::wait::background_worker;
use super::wait::background_worker::DelayedReturn;
use super::wait::unused_batches::UnusedBatches;
use crate::engine::definition::plan::Kind;
use crate::engine::{BatchAnswer, BatchWish, LockWait, TakenBatch};
use crate::error::{Error, OpenError, RequestError, SegmentError};
use crate::shm::process::fork_identity::{IdentityPage, ProcessIdentity};
use crate::shm::time::clock::{coarse_tick, coarse_utc_nanos};

/// How many units a [`LocalCredit`] takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    min: u64,
    max: u64,
}

impl Batch {
    /// Always that many, or what is left of the limit.
    pub const fn of(units: u64) -> Self {
        Self::between(units, units)
    }

    /// At first the least; twice as many each time up to the most, but never more than a sixteenth of what the limit
    /// has left, unless that is below the least; the least again after a refusal.
    pub const fn between(min: u64, max: u64) -> Self {
        Self { min, max }
    }
}

/// The answer to a wish to spend. Neither is an error.
// The larger variant is the rare one, and nothing is moved on the way of the other.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
#[must_use]
pub enum CreditOutcome {
    /// The units are the caller's to spend.
    Taken,
    /// There are not that many, here and in the limit together: nothing was taken.
    Refused(Refusal),
}

impl CreditOutcome {
    /// Whether the units are the caller's.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Taken)
    }
}

/// Units of one rate or calls limit, taken a batch at a time and spent by this process alone, without the lock: for a
/// few nanoseconds each, where a limit is asked millions of times a second.
///
/// Units are charged to the limit before they are spent, so all processes together never spend more than it gives; but
/// what a handle has left may be spent later than it was charged. In a window there may be spent what the limit allows
/// there and the batches that were left over from before, at most one a handle.
///
/// - **Where the limit is short**, batches shrink, at last to what is asked for: its last unit can be had.
/// - **Dropped**, the handle gives back what it did not spend, as far as the algorithm refunds (see
///   [`Permit::settle`](crate::Permit::settle)): GCRA and the token bucket do.
/// - **Where the algorithm counts in windows** (`fixed_window`, `sliding_window`, `sliding_window_counter`), what is
///   left over is discarded when the limit has forgotten that it was taken. That needs a look at a coarse clock for each
///   unit. It is done up to a tick of that clock early, 1 to 10 milliseconds, so windows should be much longer.
/// - **Death** of the process costs what was left: less than one batch a handle, whatever the limit's
///   [policy](crate::OnDeath).
/// - **A forked child** has nothing: what is left is its parent's. It takes a batch of its own.
/// - **No process that waits in the queue is overtaken** by taking a batch; spending what was taken before asks no
///   process.
///
/// Where a limit can be declared with [credit](crate::Limit::credit), that is what to use: threads share a batch then, the death of
/// a process costs nothing, and a request that waits gets what others have left. This is for a single loop that cannot spend
/// the locked instruction which that takes for each check, and for limits of sets that have several.
///
/// Other limits of the set are not asked. A handle serves one thread at a time; let each thread have its own.
///
/// ```
/// # use std::time::Duration;
/// # use shmlimit::{Batch, CreditOutcome, Declaration, Limit, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("telemetry")
/// #     .add_limit(Limit::calls("events", 1_000_000, Duration::from_secs(1))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let telemetry = segment.set("telemetry")?;
/// let mut events = telemetry.local_credit("events", Batch::between(10, 1_000))?;
/// for event in 0..100 {
///     match events.try_take(1)? {
///         CreditOutcome::Taken => { /* send it */ }
///         CreditOutcome::Refused(refusal) => println!("{event}: dropped, {refusal}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LocalCredit {
    /// Units taken and not spent.
    left: u64,
    /// Whose they are.
    process: ProcessIdentity,
    page: IdentityPage,
    /// When they may be spent, where they are not good for ever.
    period: Option<Period>,
    /// What they are left of.
    taken: Option<TakenBatch>,
    /// How many to take next.
    next: u64,
    batch: Batch,
    set: LimitSet,
    limit: usize,
}

/// From when to when units may be spent, by the coarse wall clock. That one, because it goes on while a machine is
/// suspended; where it is set back to before the beginning, they are not good either.
#[derive(Clone, Copy, Debug)]
struct Period {
    begin: u64,
    end: u64,
}

impl Period {
    #[inline]
    fn is_now(self) -> bool {
        let now = coarse_utc_nanos();
        self.begin <= now && now < self.end
    }
}

impl LimitSet {
    /// Credit of one limit for this process to spend by itself. Takes nothing yet.
    ///
    /// # Errors
    ///
    /// [`RequestError::KeyRequired`] where the set is keyed; [`RequestError::UnknownLimit`];
    /// [`RequestError::NoLocalCredit`] for limits other than rate and calls; [`RequestError::InvalidBatch`] where the least
    /// is zero or above the most.
    pub fn local_credit(&self, limit: impl LimitName, batch: Batch) -> Result<LocalCredit, Error> {
        let index = self.require(&limit)?;
        let engine_set = self.subject()?.set.engine_set();
        let kind = engine_set.limits.get(index).map(|limit| limit.kind);
        if !matches!(kind, Some(Kind::Rate | Kind::Calls)) {
            return Err(Error::Request(RequestError::NoLocalCredit {
                set: self.name().to_owned(),
                limit: engine_set.limit_name(index),
            }));
        }
        let Batch { min, max } = batch;
        if min == 0 || min > max {
            return Err(Error::Request(RequestError::InvalidBatch { min, max }));
        }
        let page = IdentityPage::get().map_err(|errno| {
            Error::Open(OpenError::Unsupported {
                what: "wipe a page on fork",
                source: errno.into(),
            })
        })?;
        Ok(LocalCredit {
            left: 0,
            process: page.current(),
            page,
            period: None,
            taken: None,
            next: min,
            batch,
            set: self.clone(),
            limit: index,
        })
    }
}

impl LocalCredit {
    /// Spends units: of what is left here, or of a new batch. All of them or none.
    ///
    /// # Errors
    ///
    /// [`RequestError::NeverAdmissible`] for more than the limit ever admits at once, [`SegmentError::Removed`],
    /// [`SegmentError::LockStuck`], [`SegmentError::Poisoned`]; none of them where enough is left here. A refusal is no
    /// error; it says how long it takes until what is missing can be had.
    #[inline]
    pub fn try_take(&mut self, units: u64) -> Result<CreditOutcome, Error> {
        if units <= self.left && self.is_good() {
            self.left -= units;
            return Ok(CreditOutcome::Taken);
        }
        self.take_from_new_batch(units)
    }

    /// Units that can be spent without asking the limit.
    pub fn left(&self) -> u64 {
        if self.is_good() { self.left } else { 0 }
    }

    /// Gives back what is left, as far as the algorithm refunds it, and forgets the rest; answers how many units the
    /// limit got back.
    ///
    /// Dropping does the same, but takes 10 ms at most: where another process keeps the lock for longer, the background
    /// thread of this process tries again until it can, for up to 1,024 dropped handles at a time. What is left when the
    /// process ends stays charged.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Removed`], [`SegmentError::LockStuck`], [`SegmentError::Poisoned`]; then what was left is left still.
    pub fn give_back(&mut self) -> Result<u64, Error> {
        self.give_back_within(LockWait::Timeout)
    }

    fn give_back_within(&mut self, wait: LockWait) -> Result<u64, Error> {
        self.forget_what_is_not_good();
        let Some(taken) = self.taken.filter(|_| self.left > 0) else {
            return Ok(0);
        };
        let engine = &self.set.shared().engine;
        let shard = self.set.engine_set().shard(0);
        let returned = engine.return_batch(shard, self.limit, &taken, self.left, wait)?;
        self.left = 0;
        Ok(returned)
    }

    /// Whether what is left is this process's, and counts still.
    #[inline]
    fn is_good(&self) -> bool {
        self.page.current() == self.process && self.period.is_none_or(Period::is_now)
    }

    fn forget_what_is_not_good(&mut self) {
        let process = self.page.current();
        if process != self.process {
            self.process = process;
            self.next = self.batch.min;
            self.left = 0;
        } else if !self.period.is_none_or(Period::is_now) {
            self.left = 0;
        }
    }

    #[cold]
    fn take_from_new_batch(&mut self, units: u64) -> Result<CreditOutcome, Error> {
        self.forget_what_is_not_good();
        let Some(needed @ 1..) = units.checked_sub(self.left) else {
            self.left -= units;
            return Ok(CreditOutcome::Taken);
        };
        let set = self.set.engine_set();
        let wish = BatchWish {
            limit: self.limit,
            asked: units,
            needed,
            min: self.batch.min,
            max: self.next,
        };
        // Read before, so that a period ends before its window does and never after.
        let begin = coarse_utc_nanos();
        match self.set.shared().engine.take_batch(set.shard(0), wish)? {
            BatchAnswer::Taken(batch) => {
                // What was left goes first, so what is left now is of this batch.
                self.left = batch.units.saturating_sub(needed);
                self.period = batch.lasts.map(|lasts| Period {
                    begin,
                    // A coarse clock is behind by up to a tick.
                    end: begin.saturating_add(lasts).saturating_sub(coarse_tick()),
                });
                self.taken = Some(batch);
                self.next = self.next.saturating_mul(2).min(self.batch.max);
                Ok(CreditOutcome::Taken)
            }
            BatchAnswer::Refused(decision) => {
                self.next = self.batch.min;
                Ok(CreditOutcome::Refused(Refusal::new(&self.set, decision)))
            }
        }
    }
}

impl LocalCredit {
    /// Gives back what is left as dropping does, in 10 ms at most: where another process keeps the lock for longer, the
    /// background thread of this process tries again until it can. For callers that have a log of their own.
    ///
    /// # Errors
    ///
    /// As [`give_back`](Self::give_back), but for a lock that is taken. What is left stays charged then, also when the
    /// credit is dropped.
    pub fn abandon(&mut self) -> Result<(), Error> {
        let given_back = match self.give_back_within(LockWait::Briefly) {
            Err(Error::Segment(SegmentError::LockStuck { .. })) => {
                if let Some(taken) = self.taken {
                    let unspent = UnspentBatch::new(&self.set, self.limit, taken, self.left);
                    background_worker::give_back_later(unspent);
                }
                Ok(())
            }
            given_back => given_back.map(drop),
        };
        (self.left, self.taken) = (0, None);
        given_back
    }
}

impl Drop for LocalCredit {
    fn drop(&mut self) {
        // There is no caller to answer to; what cannot be given back stays charged.
        let _given_back = self.abandon();
        #[cfg(feature = "tracing")]
        if let Err(error) = _given_back {
            tracing::warn!(set = self.set.name(), %error, "local credit could not be given back");
        }
    }
}

/// What a dropped handle of local credit had left.
#[derive(Debug)]
struct UnspentBatch {
    shared: Arc<SharedSegment>,
    set: usize,
    limit: usize,
    batch: TakenBatch,
    units: u64,
}

impl UnspentBatch {
    fn new(set: &LimitSet, limit: usize, batch: TakenBatch, units: u64) -> Self {
        Self {
            shared: Arc::clone(set.shared()),
            set: set.position(),
            limit,
            batch,
            units,
        }
    }
}

impl DelayedReturn for UnspentBatch {
    fn is_left(&mut self) -> bool {
        let engine = &self.shared.engine;
        engine.sets().get(self.set).is_some_and(|set| {
            engine
                .return_batch(set.shard(0), self.limit, &self.batch, self.units, LockWait::NOT)
                .is_err_and(|error| matches!(*error, Error::Segment(SegmentError::LockStuck { .. })))
        })
    }

    fn shared(&self) -> &Arc<SharedSegment> {
        &self.shared
    }
}

impl LimitSet {
    /// Has the background worker look after batches that were just drawn.
    #[inline]
    pub(crate) fn see_to_batches(&self) {
        if self.engine_set().claim_unattended_batches() {
            self.return_unused_batches();
        }
    }

    #[cold]
    fn return_unused_batches(&self) {
        // Without a worker, batches stay with the process until it draws again, detaches or dies.
        if background_worker::return_unused(UnusedBatches::of(self), self.shared()).is_err() {
            self.engine_set().leave_batches_unattended();
        }
    }
}
