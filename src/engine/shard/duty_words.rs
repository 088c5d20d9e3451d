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

    pub(in crate::engine) fn word(&self, word: LeaseWord) -> &AtomicU64 {
        // There are as many words as a record has.
        &self.words[word as usize]
    }

    /// A word, for a caller that may outlive `self`.
    pub(in crate::engine) fn mapped(&self, word: LeaseWord) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        self.region.mapped_words(self.offset + 8 * word as u64, 1)
    }
}
