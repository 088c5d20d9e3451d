//! How one limit of a request was decided, in three words to keep a permit small.

use std::sync::atomic::Ordering;

use crate::limit::{Assessment, Mark};
use crate::shm::layout::row::{Row, RowReference};

/// In place of a wait: time alone does not help.
pub(crate) const NEVER: u64 = u64::MAX;

/// How one limit of a request was decided: charged; or assessed, for a refusal or a peek. A decision's list continues
/// after the limits with other words in the same form, so that there is only one list to make room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// How the limit stood just after the decision.
    pub(crate) mark: Mark,
    /// The cost if it was charged; the wait if it was assessed.
    word: u64,
}

impl Decided {
    /// An entry in which nothing was noted.
    pub(super) const NOTHING: Self = Self::of_words([0; 3]);

    /// An entry with the key of a row and the reference to the row; `None` if the row has no key.
    #[inline(always)]
    pub(super) fn of_key(row: Row<'_>, reference: RowReference) -> Option<Self> {
        let [low, high] = row.fingerprint()?;
        let [low, high] = [low, high].map(|word| word.load(Ordering::Relaxed));
        Some(Self::of_words([low, high, reference.to_word()]))
    }

    /// A limit that was charged `cost` and then stood at `mark`.
    #[inline(always)]
    pub(crate) fn charged(mark: Mark, cost: u64) -> Self {
        Self { mark, word: cost }
    }

    /// A limit that stands at `mark` and was only asked about a cost.
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

    /// The units that were charged. Only for a limit that was charged.
    #[inline(always)]
    pub(crate) fn cost(&self) -> u64 {
        self.word
    }

    pub(super) fn add_to_cost(&mut self, amount: u64) {
        self.word = self.word.saturating_add(amount);
    }

    /// Nanoseconds until what was assessed would be admitted: zero if it is now, [`NEVER`] if time alone does not help.
    /// Only for a limit that was assessed.
    #[inline(always)]
    pub(crate) fn wait(&self) -> u64 {
        self.word
    }

    pub(super) fn wait_at_least(&mut self, wait: u64) {
        self.word = self.word.max(wait);
    }
}
