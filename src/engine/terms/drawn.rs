//! A batch of credit that was drawn: whose it is, where it is recorded, and until when it may be spent.

use std::num::NonZeroU64;

use crate::limit::Mark;
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::row::RowReference;
use crate::table::Fingerprint;

/// A batch that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Drawn {
    /// The key that it was drawn for; [`Fingerprint::NONE`] in a set without keys.
    pub(in crate::engine) fingerprint: Fingerprint,
    /// The participant that drew it; zero in an empty place.
    pub(in crate::engine) owner: u64,
    /// The generation of the definition that it was drawn by.
    pub(in crate::engine) generation: u64,
    /// The hold that records it, and its tag there.
    pub(in crate::engine) hold: HoldReference,
    pub(in crate::engine) tag: u64,
    pub(in crate::engine) row: RowReference,
    /// How the limit stood at the draw.
    pub(in crate::engine) mark: Mark,
    pub(in crate::engine) units: u64,
    /// On the segment clock.
    pub(in crate::engine) drawn_at: u64,
    /// When it may be spent, on the clock that the limit reads.
    pub(in crate::engine) period: Period,
}

/// What the fast path reads of a batch: one of a set without keys that does not end with a window.
#[derive(Clone, Copy)]
pub(in crate::engine) struct CurrentBatch {
    pub(in crate::engine) owner: u64,
    pub(in crate::engine) generation: u64,
    /// In the low 32 bits, the index of the hold that records it; above, its tag there.
    pub(in crate::engine) hold: u64,
    /// The serial number of the hold.
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

/// What a request was admitted from, and what it spent.
pub(crate) struct Spent {
    pub(in crate::engine) batch: CurrentBatch,
    pub(in crate::engine) cost: u64,
    /// How many units it left in the batch.
    pub(in crate::engine) left: u64,
}

/// A span of time, from `begin` up to but not including `end`.
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
