//! How one limit of a request was decided, in three words, so that a permit stays small.

use std::sync::atomic::Ordering;

use crate::limit::{Assessment, Mark};
use crate::shm::layout::row::{Row, RowReference};

/// A wait that time does not end.
pub(crate) const NEVER: u64 = u64::MAX;

/// How one limit of a request was decided: charged, or assessed where the request is refused or only asked. Behind the
/// limits of a decision stand words of other meaning in the same form, so that there is one list to make room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// How the limit stood just after the decision.
    pub(crate) mark: Mark,
    /// The cost of what was charged, or the wait of what was assessed.
    word: u64,
}

impl Decided {
    /// What stands where nothing was noted.
    pub(super) const NOTHING: Self = Self::of_words([0; 3]);

    /// The key of a row, if it has one, and how the row is named.
    #[inline(always)]
    pub(super) fn of_key(row: Row<'_>, reference: RowReference) -> Option<Self> {
        let [low, high] = row.fingerprint()?;
        let [low, high] = [low, high].map(|word| word.load(Ordering::Relaxed));
        Some(Self::of_words([low, high, reference.to_word()]))
    }

    /// What was charged, of a limit that stood so just after.
    #[inline(always)]
    pub(crate) fn charged(mark: Mark, cost: u64) -> Self {
        Self { mark, word: cost }
    }

    /// What a limit that stands so says of a cost.
    #[inline]
    pub(crate) fn assessed(mark: Mark, assessment: Assessment) -> Self {
        let word = match assessment {
            Assessment::Admissible => 0,
            Assessment::Refused { retry_after } => retry_after.unwrap_or(NEVER),
        };
        Self { mark, word }
    }

    #[inline(always)]
    pub(super) const fn of_words([first, second, word]: [u64; 3]) -> Self {
        let mark = Mark { first, second };
        Self { mark, word }
    }

    #[inline(always)]
    pub(super) fn words(&self) -> [u64; 3] {
        [self.mark.first, self.mark.second, self.word]
    }

    /// The units that were charged.
    #[inline(always)]
    pub(crate) fn cost(&self) -> u64 {
        self.word
    }

    pub(super) fn add_to_cost(&mut self, amount: u64) {
        self.word = self.word.saturating_add(amount);
    }

    /// The nanoseconds until what was assessed would be admitted: zero where it is, [`NEVER`] where time does not help.
    #[inline(always)]
    pub(crate) fn wait(&self) -> u64 {
        self.word
    }

    pub(super) fn wait_at_least(&mut self, wait: u64) {
        self.word = self.word.max(wait);
    }
}
