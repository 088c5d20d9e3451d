//! Where it stands in a segment which process asks the store.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::engine::shard::set_engine::SetEngine;
use crate::limit::{LEASE_WORDS, LeaseWord};
use crate::shm::file::region::{Mapped, OutOfRegion, Region};

/// The first record of a lease in a segment, whose last words are of the segment as a whole.
#[derive(Debug)]
pub(in crate::engine) struct DutyWords {
    region: Arc<Region>,
    offset: u64,
    words: Mapped<AtomicU64>,
}

impl DutyWords {
    /// Those of the segment; none where no limit has room for a lease.
    pub(in crate::engine) fn locate(
        region: &Arc<Region>,
        sets: &[SetEngine],
    ) -> Result<Option<Self>, OutOfRegion> {
        let first = sets.iter().find_map(|set| {
            let word = set.shown().limits.iter().find_map(|limit| limit.lease_word())?;
            let geometry = set.geometry.shards.first()?;
            Some(geometry.rows_offset + 8 * word as u64)
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

    /// Who has duty.
    pub(in crate::engine) fn duty(&self) -> &AtomicU64 {
        self.word(LeaseWord::Duty)
    }

    /// What the process that has duty sleeps by.
    pub(in crate::engine) fn duty_futex(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyFutex)
    }

    /// What those sleep by that would take duty.
    pub(super) fn duty_free(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyFree)
    }

    /// When duty may be taken from an owner that lives, on the segment clock.
    pub(super) fn duty_until(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyUntil)
    }

    /// How often duty was taken: what a process still has of an earlier time is not what it has now.
    pub(super) fn duty_taken(&self) -> &AtomicU64 {
        self.word(LeaseWord::DutyTaken)
    }

    pub(super) fn takeovers(&self) -> &AtomicU64 {
        self.word(LeaseWord::Takeovers)
    }

    /// The same futex, for a caller that may outlive this.
    pub(super) fn mapped_duty_free(&self) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        let offset = self.offset + 8 * LeaseWord::DutyFree as u64;
        self.region.mapped_words(offset, 1)
    }
}
