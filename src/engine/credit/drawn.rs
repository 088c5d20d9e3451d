//! A batch of credit that was drawn: whose it is, where it is recorded, and until when it may be spent.

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
