//! The two ways to change words under a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::journal::Transaction;

/// Changes words: all or nothing, through the journal, or each one directly.
pub(crate) trait Store {
    /// Replaces the word's value.
    fn store(&mut self, word: &AtomicU64, value: u64);
}

impl Store for &mut Transaction<'_> {
    #[inline]
    fn store(&mut self, word: &AtomicU64, value: u64) {
        Transaction::store(self, word, value);
    }
}

/// Changes each word directly: for work that can be repeated from the start after a death.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct;

impl Store for Direct {
    #[inline]
    fn store(&mut self, word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Relaxed);
    }
}
