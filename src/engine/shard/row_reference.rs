//! How what was decided on a row names it: by its number, and by a generation that tells it from what the row was before.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shard_memory::Row;
use crate::shm::layout::records::KeyRow;

/// A row, and its generation when something was decided on it. Of a set that is not keyed, zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowReference {
    /// Below 2^31.
    pub(crate) index: u64,
    pub(crate) generation: u32,
}

impl RowReference {
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        (self.index & u64::from(u32::MAX)) | (u64::from(self.generation) << 32)
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            index: word & u64::from(u32::MAX),
            generation: (word >> 32) as u32,
        }
    }
}

impl<'a> Row<'a> {
    /// What was decided on the row in another generation is void: it was another key's, or has been reset.
    #[inline]
    pub(crate) fn generation(self) -> Option<&'a AtomicU64> {
        self.head_word(offset_of!(KeyRow, generation))
    }

    /// The row as what is decided on it now names it.
    #[inline]
    pub(crate) fn reference(self) -> RowReference {
        RowReference {
            index: self.index,
            generation: self
                .generation()
                .map_or(0, |generation| generation.load(Ordering::Relaxed) as u32),
        }
    }

    /// The word of the generation, and what it becomes when the row is given to a key, which begins in the tier
    /// `default`: what was decided before is void.
    pub(in crate::engine) fn next_generation(self) -> Option<(&'a AtomicU64, u64)> {
        let next = self.reference().generation.wrapping_add(1);
        Some((self.generation()?, u64::from(next)))
    }
}
