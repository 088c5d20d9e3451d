//! Noticing that a segment was removed: retired, its file deleted, or another segment put at its path.
//!
//! An operation that takes something and whose reading of the clock is a second later than the last look has a look first:
//! two system calls, outside of the lock. A process that does nothing is not woken for it, and finds out before it is next
//! admitted; what waits looks once a second in any case. What is admitted from a batch reads no clock: while the process
//! has batches, its background worker looks. Giving back asks for none of this:
//! what permits hold is settled and released in the file that they were taken from, whatever became of that.

use std::sync::atomic::Ordering;

use super::removal_watch::REPLACED;
#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::{Error, RemovalCause, SegmentError};
use crate::limit::Now;
use crate::shm::file::removal::{marked_removal, retire};
use crate::units::NANOS_PER_SECOND;

/// The pause between two looks, in nanoseconds.
const PAUSE: u64 = NANOS_PER_SECOND;

impl SegmentEngine {
    /// Marks the segment as no longer to be used; every later operation of any process says so.
    pub(crate) fn retire(&self) {
        retire(self.header());
    }

    /// What became of the segment, as far as this process knows.
    pub(crate) fn removal(&self) -> Option<RemovalCause> {
        marked_removal(self.header()).or_else(|| {
            let is_replaced = self.removal.next_look.load(Ordering::Relaxed) == REPLACED;
            is_replaced.then_some(RemovalCause::Replaced)
        })
    }

    /// Looks if it is time: for a process that may admit from batches, and so would not look. What it finds is known to this
    /// handle from then on.
    pub(crate) fn look_for_removal_if_due(&self) {
        // The process that is refused for it gets the error.
        let _ = self.refuse_if_removed(self.read_clocks(false));
    }

    /// Whether this process knows that the segment was removed, without a look and without a clock: for what is admitted
    /// from a batch.
    #[inline]
    pub(in crate::engine) fn is_known_to_be_removed(&self) -> bool {
        self.header().retired.load(Ordering::Relaxed) != 0
            || self.removal.next_look.load(Ordering::Relaxed) == REPLACED
    }

    /// That nothing is taken from a segment that was removed.
    #[inline(always)]
    pub(in crate::engine) fn refuse_if_removed(&self, now: Now) -> Result<(), Box<Error>> {
        let is_marked = self.header().retired.load(Ordering::Relaxed) != 0;
        if is_marked || now.monotonic >= self.removal.next_look.load(Ordering::Relaxed) {
            return self.look_again(now);
        }
        Ok(())
    }

    #[cold]
    fn look_again(&self, now: Now) -> Result<(), Box<Error>> {
        if let Some(cause) = self.removal() {
            return Err(self.removed(cause));
        }
        let next = now.monotonic.saturating_add(PAUSE);
        let due = self.removal.next_look.load(Ordering::Relaxed);
        let is_taken_on = due != REPLACED
            && self
                .removal
                .next_look
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        // Where another thread was first, it has the look.
        if is_taken_on { self.look_now() } else { Ok(()) }
    }

    /// Looks whatever the time is: something has gone wrong, and that the file is gone explains it better.
    #[cold]
    pub(in crate::engine) fn explain(&self, error: Box<Error>) -> Box<Error> {
        match self.look_now() {
            Err(removed) if !matches!(*error, Error::Segment(SegmentError::Removed { .. })) => removed,
            _ => error,
        }
    }

    fn look_now(&self) -> Result<(), Box<Error>> {
        let Some(cause) = self.membership.look_for_removal(self.path()) else {
            return Ok(());
        };
        if cause == RemovalCause::Replaced {
            self.removal.next_look.store(REPLACED, Ordering::Relaxed);
        }
        Err(self.removed(cause))
    }

    #[cold]
    fn removed(&self, cause: RemovalCause) -> Box<Error> {
        let error = Error::Segment(SegmentError::Removed {
            path: self.path().to_owned(),
            cause,
        });
        if !self.removal.was_reported.swap(true, Ordering::Relaxed) {
            #[cfg(feature = "tracing")]
            contained(|| tracing::warn!(path = %self.path().display(), %cause, "{error}"));
        }
        Box::new(error)
    }
}
