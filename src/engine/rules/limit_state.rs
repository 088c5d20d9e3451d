//! Shared memory as the rules see it: the words of a limit's state, the key of a row, the mark of a grant.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::{Mark, State, StateMut};
use crate::shm::layout::places::TicketLimitPlace;
use crate::shm::layout::row::Row;
use crate::shm::lock::store::Store;
use crate::table::Fingerprint;

/// A limit's state in shared memory, and how to change it. `()` can only read.
#[derive(Clone, Copy)]
pub(crate) struct StateWords<'a, S = ()> {
    words: &'a [AtomicU64],
    store: S,
}

impl<'a> StateWords<'a> {
    #[inline(always)]
    pub(crate) fn reading(words: &'a [AtomicU64]) -> Self {
        Self { words, store: () }
    }
}

impl<'a, S: Store> StateWords<'a, S> {
    #[inline(always)]
    pub(crate) fn changing(words: &'a [AtomicU64], store: S) -> Self {
        Self { words, store }
    }
}

impl<S> State for StateWords<'_, S> {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        // A rule asks only for words it has. Any other reads as never used.
        let word = self.words.get(index);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn load_pair(&self, index: usize) -> [u64; 2] {
        let pair = self.words.get(index..).and_then(<[_]>::first_chunk);
        pair.map_or([0; 2], |[first, second]| {
            [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
        })
    }
}

impl<S: Store> StateMut for StateWords<'_, S> {
    #[inline]
    fn store(&mut self, index: usize, value: u64) {
        if let Some(word) = self.words.get(index) {
            self.store.store(word, value);
        }
    }

    #[inline(always)]
    fn store_pair(&mut self, index: usize, values: [u64; 2]) {
        if let Some([first, second]) = self.words.get(index..).and_then(<[_]>::first_chunk) {
            self.store.store(first, values[0]);
            self.store.store(second, values[1]);
        }
    }
}

impl Row<'_> {
    /// The fingerprint of the key that has the row.
    #[inline]
    pub(crate) fn key(self) -> Fingerprint {
        self.fingerprint()
            .map_or(Fingerprint::NONE, |[low, high]| Fingerprint {
                low: low.load(Ordering::Relaxed),
                high: high.load(Ordering::Relaxed),
            })
    }

    /// Whether the row is that of the key with this fingerprint.
    pub(crate) fn is_of(self, fingerprint: Fingerprint) -> bool {
        self.is_keyed() && self.key() == fingerprint
    }

    /// Whether no key has ever had the row. The row of a set without keys counts as used.
    pub(crate) fn is_unused(self) -> bool {
        self.is_of(Fingerprint::NONE)
    }
}

impl TicketLimitPlace<'_> {
    /// How the limit stood just after the grant.
    pub(crate) fn mark(self) -> Mark {
        let [first, second] = self.mark_words().map(|word| word.load(Ordering::Relaxed));
        Mark { first, second }
    }

    pub(crate) fn set_mark(self, mark: Mark) {
        for (word, value) in self.mark_words().into_iter().zip([mark.first, mark.second]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}
