//! The counters of a snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::shm::layout::records::{LimitCounters, SetControl};

/// The counters of a set since its creation or the last reset of its counters. A process that is killed in the middle
/// of an operation may leave it counted but undone: each death counts at most one operation too many, and none too
/// few, except requests admitted from a batch of [credit](crate::Limit::credit) that were not counted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct SetCounts {
    pub admitted: u64,
    pub refused_rate: u64,
    pub refused_concurrency: u64,
    pub refused_budget: u64,
    /// Requests refused because no row was left for their key.
    pub refused_table_full: u64,
    /// Requests refused because every hold was taken.
    pub refused_holds_full: u64,
    /// Requests refused because every ticket was taken.
    pub refused_queue_full: u64,
    /// Requests refused because the set, or their key, was [throttled](crate::Permit::throttled).
    pub refused_throttled: u64,
    /// Requests refused because the store had no more units for this host, of a limit that [hosts
    /// share](crate::Limit::fleet).
    pub refused_lease: u64,
    /// Requests refused because nothing of a limit that hosts share was leased yet.
    pub refused_lease_pending: u64,
    /// Requests refused because the store of a limit that hosts share was down.
    pub refused_store_out: u64,
    /// Requests admitted after waiting.
    pub waited: u64,
    /// Requests that waited and were refused when their time was up.
    pub timed_out: u64,
    /// Requests given up while waiting.
    pub cancelled: u64,
    /// Grants taken back because they were not collected while others waited.
    pub lapsed: u64,
    pub settled: u64,
    /// Holds given back for dead processes.
    pub reclaimed: u64,
    /// Places in the queue given back for dead processes.
    pub reclaimed_tickets: u64,
    /// Amounts given back because their lease had run out, or because hosts share the limit and the place was no longer
    /// leased.
    pub expired: u64,
    /// Times the lock was found with a dead owner.
    pub recoveries: u64,
    /// Times the holds had to be recounted.
    pub rebuilds: u64,
    /// Requests and settles that named limits the set does not have.
    pub unknown_names: u64,
    pub active_high_water: u64,
    /// The most requests that waited at once.
    pub queued_high_water: u64,
    /// Times a process had to wait for the lock.
    pub lock_waits: u64,
}

/// The counters of a limit since its creation or the last reset, with the same caveat as [those of a set](SetCounts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct LimitCounts {
    /// Requests admitted.
    pub admitted: u64,
    /// Units taken.
    pub taken: u64,
    /// Requests refused.
    pub refused: u64,
    /// Permits settled.
    pub settled: u64,
    /// Units given back because they were not used: by settling, by cancelling, from grants that were not collected,
    /// and from batches.
    pub refunded: u64,
    /// Units used beyond what was reserved.
    pub overdraft: u64,
    /// Permits dropped without being settled. For a concurrency limit: permits that held some of it and that the
    /// program [lost](crate::Permit::release_lost), such as a permit in Python that is garbage-collected before it is
    /// released.
    pub unsettled: u64,
    /// Units given back for dead holders, or because a lease of the hold or of the host had run out.
    pub reclaimed: u64,
    /// The most units held at once.
    pub high_water: u64,
    /// Admitted requests that left the limit near its capacity.
    pub near: u64,
    /// Requests that the limit would have refused if it were not in shadow mode.
    pub would_refuse: u64,
    /// Permits released as failed.
    pub failed: u64,
}

/// Adds counters to their sums, and takes the maximum of high-water marks.
macro_rules! add_counts {
    ($sum:ident, $words:ident, [$($added:ident),*], [$($max:ident),*]) => {
        $($sum.$added = $sum.$added.saturating_add(load(&$words.$added));)*
        $($sum.$max = $sum.$max.max(load(&$words.$max));)*
    };
}

impl SetCounts {
    /// Requests that were refused at once, for any reason.
    pub fn refused(&self) -> u64 {
        [
            self.refused_rate,
            self.refused_concurrency,
            self.refused_budget,
            self.refused_table_full,
            self.refused_holds_full,
            self.refused_queue_full,
            self.refused_throttled,
            self.refused_lease,
            self.refused_lease_pending,
            self.refused_store_out,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    pub(super) fn add(&mut self, control: &SetControl) {
        add_counts!(
            self,
            control,
            [
                admitted,
                refused_rate,
                refused_concurrency,
                refused_budget,
                refused_table_full,
                refused_holds_full,
                refused_queue_full,
                refused_throttled,
                refused_lease,
                refused_lease_pending,
                refused_store_out,
                waited,
                timed_out,
                cancelled,
                lapsed,
                settled,
                reclaimed,
                reclaimed_tickets,
                expired,
                recoveries,
                rebuilds,
                unknown_names,
                lock_waits
            ],
            [active_high_water, queued_high_water]
        );
    }
}

impl LimitCounts {
    pub(super) fn add(&mut self, counters: &LimitCounters) {
        add_counts!(
            self,
            counters,
            [
                admitted,
                taken,
                refused,
                settled,
                refunded,
                overdraft,
                unsettled,
                reclaimed,
                near,
                would_refuse,
                failed
            ],
            [high_water]
        );
    }
}

pub(super) fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}
