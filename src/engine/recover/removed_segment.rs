//! Notices that a segment was removed: retired, its file deleted, or another segment put at its path.
//!
//! An operation that takes something looks first, if its reading of the clock is at least a second later than that of
//! the previous operation that looked. This takes two system calls, made outside of the lock. A process that does
//! nothing is not woken to look, and finds out before its next admission. Waiters look once a second in any case.
//! Admissions from a batch read no clock: while the process has batches, its background worker looks. Giving back needs
//! none of this: what permits hold is settled and released in the file that it was taken from, whatever has become of
//! that file.

use std::sync::atomic::Ordering;

#[cfg(feature = "tracing")]
use crate::callers_code::contained;
use crate::engine::shard::removal_watch::REPLACED;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::{Error, RemovalCause, SegmentError};
use crate::limit::Now;
use crate::shm::file::removal::{marked_removal, retire};
use crate::units::NANOS_PER_SECOND;

/// How long to wait before looking again, in nanoseconds.
const PAUSE: u64 = NANOS_PER_SECOND;

impl SegmentEngine {
    /// Marks the segment as retired. Every later operation of any process reports that.
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

    /// Looks if it is time, for a process that may admit from batches and would not look otherwise. From then on this
    /// handle knows the result.
    pub(crate) fn look_for_removal_if_due(&self) {
        // The caller that is refused because of it gets the error.
        let _ = self.refuse_if_removed(self.read_clocks(false));
    }

    /// Whether this process knows that the segment was removed, without looking and without a clock: for admissions
    /// from a batch.
    #[inline]
    pub(in crate::engine) fn is_known_to_be_removed(&self) -> bool {
        self.header().retired.load(Ordering::Relaxed) != 0
            || self.removal.next_look.load(Ordering::Relaxed) == REPLACED
    }

    /// Fails if the segment was removed. Looks whether it was, if it is time.
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
        // If another thread came first, that one looks.
        if is_taken_on { self.look_now() } else { Ok(()) }
    }

    /// Looks even if it is not time yet: something went wrong, and if the file is gone, that explains it better.
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
