//! The two ways to change words under a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::journal::Transaction;

/// How words are changed: all or nothing, through the journal, or each at once.
pub(crate) trait Store {
    /// Replaces what the word says.
    fn store(&mut self, word: &AtomicU64, value: u64);
}

impl Store for &mut Transaction<'_> {
    #[inline]
    fn store(&mut self, word: &AtomicU64, value: u64) {
        Transaction::store(self, word, value);
    }
}

/// Each at once: for what can be repeated from the start after a death.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct;

impl Store for Direct {
    #[inline]
    fn store(&mut self, word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Relaxed);
    }
}
