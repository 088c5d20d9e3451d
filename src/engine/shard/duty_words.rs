//! Where a segment says which process asks the store.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::engine::shard::set_engine::SetEngine;
use crate::limit::{LEASE_WORDS, LeaseWord};
use crate::shm::file::region::{Mapped, OutOfRegion, Region};

/// The first lease record of a segment, whose last words concern the segment as a whole.
#[derive(Debug)]
pub(in crate::engine) struct DutyWords {
    region: Arc<Region>,
    offset: u64,
    words: Mapped<AtomicU64>,
}

impl DutyWords {
    /// The words of this segment; `None` if no limit has room for a lease.
    pub(in crate::engine) fn locate(
        region: &Arc<Region>,
        sets: &[SetEngine],
    ) -> Result<Option<Self>, OutOfRegion> {
        let first = sets.iter().find_map(|set| {
            let word = set.shown().limits.iter().find_map(|limit| limit.lease_word())?;
            let geometry = set.geometry.shards.first()?;
            let start = if set.is_keyed() {
                geometry.leases_offset
            } else {
                geometry.rows_offset
            };
            Some(start + 8 * word as u64)
        });
        first
            .map(|offset| {
                Ok(Self {
                    region: Arc::clone(region),
                    offset,
                    words: region.mapped_words(offset, LEASE_WORDS as u64)?,
                })
            })
            .transpose()
    }

    fn word(&self, word: LeaseWord) -> &AtomicU64 {
        // There are as many words as a record has.
        &self.words[word as usize]
    }

    /// The owner word of the process on duty.
    pub(in crate::engine) fn duty(&self) -> &AtomicU64 {
        self.word(LeaseWord::Duty)
    }

    /// The futex on which the process on duty sleeps.
    pub(in crate::engine) fn duty_futex(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyFutex)
    }

    /// The futex on which processes that want duty sleep.
    pub(in crate::engine) fn duty_free(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyFree)
    }

    /// The futex on which requests sleep until the store answers.
    pub(in crate::engine) fn answered(&self) -> &AtomicU64 {
        self.word(LeaseWord::Answered)
    }

    /// When duty may be taken from its owner even if it is alive, on the segment clock.
    pub(in crate::engine) fn duty_until(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyUntil)
    }

    /// How often duty was taken, which tells a process whether it still has the duty that it took.
    pub(in crate::engine) fn duty_taken(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyTaken)
    }

    pub(in crate::engine) fn takeovers(&self) -> &AtomicU64 {
        self.word(LeaseWord::Takeovers)
    }

    /// Whether the store evicts keys, as the process on duty last found.
    pub(in crate::engine) fn evicts(&self) -> &AtomicU64 {
        self.word(LeaseWord::Evicts)
    }

    /// The futex of [`duty_free`](Self::duty_free), for a caller that may outlive `self`.
    pub(in crate::engine) fn mapped_duty_free(&self) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        self.mapped(LeaseWord::DutyFree)
    }

    /// The futex of [`answered`](Self::answered), for a caller that may outlive `self`.
    pub(in crate::engine) fn mapped_answered(&self) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        self.mapped(LeaseWord::Answered)
    }

    fn mapped(&self, word: LeaseWord) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        self.region.mapped_words(self.offset + 8 * word as u64, 1)
    }
}
