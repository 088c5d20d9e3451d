//! The state of one key's limits. Decisions refer to a row by its number and by a generation, which tells it from
//! what it was before.

use std::sync::atomic::{AtomicU64, Ordering};

use super::records::KeyRow;
use crate::choices::Scope;

/// The limits of one key, or of a set without keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) index: u64,
    pub(super) head: Option<&'a KeyRow>,
    /// The states of the limits that each key has of its own, one after the other. Empty if the key has no row: they
    /// then read as never used.
    pub(super) state: &'a [AtomicU64],
    /// The states of the limits that all keys share: the same words for every row of a shard.
    pub(super) overall: &'a [AtomicU64],
}

/// The rows of one request: usually one. If limits count networks of several prefix lengths, one for each length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    first: Row<'a>,
    others: &'a [Row<'a>],
}

impl<'a> From<Row<'a>> for Rows<'a> {
    #[inline(always)]
    fn from(row: Row<'a>) -> Self {
        Self {
            first: row,
            others: &[],
        }
    }
}

impl<'a> Rows<'a> {
    /// One row for each prefix length, the shortest first.
    pub(crate) fn of_levels(rows: &'a [Row<'a>]) -> Self {
        let (first, others) = rows
            .split_first()
            .map_or((Row::ABSENT, rows), |(first, others)| (*first, others));
        Self { first, others }
    }

    /// The row for limits of that level.
    #[inline(always)]
    pub(crate) fn of(self, level: usize) -> Row<'a> {
        match level.checked_sub(1) {
            None => self.first,
            Some(other) => self.others.get(other).copied().unwrap_or(Row::ABSENT),
        }
    }

    /// The row in whose queue its requests wait.
    #[inline(always)]
    pub(crate) fn first(self) -> Row<'a> {
        self.first
    }

    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = Row<'a>> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// A row, and its generation when a decision was made on it. All zeros for a set without keys.
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
    /// The row of a key that has none, in a shard without limits that all keys share.
    pub(crate) const ABSENT: Self = Self {
        index: u64::MAX,
        head: None,
        state: &[],
        overall: &[],
    };

    /// Whether it belongs to a table of keys.
    pub(crate) fn is_keyed(self) -> bool {
        self.head.is_some()
    }

    /// Whether it stands for a key that has no row.
    #[inline]
    pub(crate) fn is_absent(self) -> bool {
        self.index == Self::ABSENT.index
    }

    /// The words of the states of the limits with this scope.
    #[inline(always)]
    pub(crate) fn states(self, scope: Scope) -> &'a [AtomicU64] {
        match scope {
            Scope::Key => self.state,
            Scope::AllKeys => self.overall,
        }
    }

    /// The row with a copy of its states in place of the states themselves. Words that the row lacks are copied as
    /// never used.
    pub(crate) fn copied_to(self, state: &'a [AtomicU64], overall: &'a [AtomicU64]) -> Self {
        for (target, own) in [(state, self.state), (overall, self.overall)] {
            for (index, word) in target.iter().enumerate() {
                let own = own.get(index).map_or(0, |own| own.load(Ordering::Relaxed));
                word.store(own, Ordering::Relaxed);
            }
        }
        Self {
            state,
            overall,
            ..self
        }
    }

    #[inline]
    pub(crate) fn fingerprint(self) -> Option<&'a [AtomicU64; 2]> {
        self.head.map(|head| &head.fingerprint)
    }

    #[inline]
    pub(crate) fn used_at(self) -> Option<&'a AtomicU64> {
        self.head.map(|head| &head.used_at)
    }

    #[inline]
    pub(crate) fn counts(self) -> Option<&'a AtomicU64> {
        self.head.map(|head| &head.counts)
    }

    #[inline]
    pub(crate) fn row_references(self) -> Option<&'a AtomicU64> {
        self.head.map(|head| &head.row_references)
    }

    /// Decisions made on the row in another generation are void: it belonged to another key then, or has been reset
    /// since.
    #[inline]
    pub(crate) fn generation(self) -> Option<&'a AtomicU64> {
        self.head.map(|head| &head.generation)
    }

    /// The reference that a decision made on the row now would keep.
    #[inline]
    pub(crate) fn reference(self) -> RowReference {
        RowReference {
            index: self.index,
            generation: self
                .generation()
                .map_or(0, |generation| generation.load(Ordering::Relaxed) as u32),
        }
    }

    /// The word of the generation, and its new value when the row is given to a key, which starts in the default
    /// tier: earlier decisions become void.
    pub(crate) fn next_generation(self) -> Option<(&'a AtomicU64, u64)> {
        let next = self.reference().generation.wrapping_add(1);
        Some((self.generation()?, u64::from(next)))
    }
}
