//! A batch of credit that was drawn: whose it is, where it is recorded, and until when it may be spent.

use std::num::NonZeroU64;

use crate::limit::Mark;
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::row::RowReference;
use crate::table::Fingerprint;

/// A batch that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Drawn {
    /// Whose; that of no key in a set that is not keyed.
    pub(in crate::engine) fingerprint: Fingerprint,
    /// The participant that drew it, zero in an empty place.
    pub(in crate::engine) owner: u64,
    /// By which definition.
    pub(in crate::engine) generation: u64,
    /// Where it is recorded, and its tag there.
    pub(in crate::engine) hold: HoldReference,
    pub(in crate::engine) tag: u64,
    pub(in crate::engine) row: RowReference,
    /// How the limit stood then.
    pub(in crate::engine) mark: Mark,
    pub(in crate::engine) units: u64,
    /// On the segment clock.
    pub(in crate::engine) drawn_at: u64,
    /// From when to when it may be spent, on the clock that the limit reads.
    pub(in crate::engine) period: Period,
}

/// What admitting from the batch of a set without keys reads of it, which does not end with a window.
#[derive(Clone, Copy)]
pub(in crate::engine) struct CurrentBatch {
    pub(in crate::engine) owner: u64,
    pub(in crate::engine) generation: u64,
    /// Index of the hold that records it, and its tag there above.
    pub(in crate::engine) hold: u64,
    /// Of the hold.
    pub(in crate::engine) serial: NonZeroU64,
    pub(in crate::engine) mark: Mark,
    pub(in crate::engine) drawn_at: u64,
}

impl CurrentBatch {
    /// The index of the hold that records it.
    #[inline(always)]
    pub(in crate::engine) fn hold_index(&self) -> u64 {
        self.hold & u64::from(u32::MAX)
    }

    /// Its tag in the hold.
    #[inline(always)]
    pub(in crate::engine) fn tag(&self) -> u64 {
        self.hold >> 32
    }
}

/// What a request was admitted by.
pub(crate) struct Spent {
    pub(in crate::engine) batch: CurrentBatch,
    pub(in crate::engine) cost: u64,
    /// What it left of the batch.
    pub(in crate::engine) left: u64,
}

/// A stretch of time, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Period {
    pub(in crate::engine) begin: u64,
    pub(in crate::engine) end: u64,
}

impl Period {
    pub(in crate::engine) const ALWAYS: Self = Self {
        begin: 0,
        end: u64::MAX,
    };

    #[inline]
    pub(in crate::engine) fn contains(self, instant: u64) -> bool {
        self.begin <= instant && instant < self.end
    }
}
