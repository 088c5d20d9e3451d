//! All or nothing for operations that change several words: an undo journal, written under the set's lock.
//!
//! The old value of a word goes into the journal before the word changes, followed by the count. After SIGKILL the
//! survivors see a prefix of the stores in program order, so whatever was changed is in the journal. A single store
//! that sets the count to zero commits. Undoing is idempotent: a recoverer may die anywhere, and the next one starts
//! over.
//!
//! The journal word packs the count into its low byte, and a sequence number above it that advances with every
//! commit. Together they let readers without the lock tell a consistent copy from a torn one.

#[cfg(test)]
mod journal_tests;

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::{JOURNAL_ENTRIES, JournalEntry};

/// In place of a count: a reset is in progress, and whoever finds it completes it.
pub(crate) const RESET_MARKER: u64 = 255;

/// In place of a count: the holds are being recounted, and whoever finds it starts the recount over.
pub(crate) const REBUILD_MARKER: u64 = 254;

/// In place of a count: an operation changes one word with one store. It either happened or did not, so there is
/// nothing to undo.
pub(crate) const CHANGE_MARKER: u64 = 253;

const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

const _: () = assert!((JOURNAL_ENTRIES as u64) < CHANGE_MARKER);

/// The journal of one set, and the words it guards.
#[derive(Clone, Copy)]
pub(crate) struct Journal<'a> {
    word: &'a AtomicU64,
    entries: &'a [JournalEntry],
    extent: &'a [AtomicU64],
}

/// What the journal says about the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalState {
    /// Nothing is in progress.
    Idle,
    /// That many words may have changed and must be put back.
    Undo(usize),
    /// A reset must be completed.
    Reset,
    /// The holds must be recounted.
    Rebuild,
    /// One word is changed by one store, which either happened or did not.
    Change,
    /// A count that no operation writes.
    Damaged(u64),
}

/// The journal has no room for another word, or the word lies outside the extent it guards. The operation has been
/// undone. Either is a bug in the library, never a fault in the caller's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalOverflow;

impl<'a> Journal<'a> {
    /// The journal at `word` with its `entries`. It guards what comes after the word in `extent`.
    #[inline]
    pub(crate) fn new(word: &'a AtomicU64, entries: &'a [JournalEntry], extent: &'a [AtomicU64]) -> Self {
        Self {
            word,
            entries,
            extent,
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> JournalState {
        match self.word.load(Ordering::Relaxed) & COUNT_MASK {
            0 => JournalState::Idle,
            RESET_MARKER => JournalState::Reset,
            REBUILD_MARKER => JournalState::Rebuild,
            CHANGE_MARKER => JournalState::Change,
            count if count as usize <= self.entries.len() => JournalState::Undo(count as usize),
            count => JournalState::Damaged(count),
        }
    }

    /// Zero only if nothing is in progress.
    #[inline(always)]
    pub(crate) fn unfinished(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & COUNT_MASK
    }

    /// Starts an operation. The caller must hold the lock and have found the journal idle.
    #[inline]
    pub(crate) fn begin(self) -> Transaction<'a> {
        let sequence = self.word.load(Ordering::Relaxed) & !COUNT_MASK;
        Transaction {
            journal: self,
            sequence,
            count: 0,
            overflowed: false,
        }
    }

    /// Puts back what an uncommitted operation changed, and leaves the journal as it is: the caller, who holds the
    /// lock, [closes](Self::close) it. Entries for words that no operation changes are damage: they are skipped, and
    /// the result is `false`.
    #[must_use]
    pub(crate) fn undo(&self, count: usize) -> bool {
        let mut sound = true;
        // Latest first: if a word was journalled twice, its oldest value must be the one that stays.
        for entry in self.entries.iter().take(count).rev() {
            let index = entry.index.load(Ordering::Relaxed);
            match usize::try_from(index)
                .ok()
                .filter(|index| self.may_change(*index))
                .and_then(|index| self.extent.get(index))
            {
                Some(word) => word.store(entry.old.load(Ordering::Relaxed), Ordering::Relaxed),
                None => sound = false,
            }
        }
        sound
    }

    /// The positions in the extent of the words that the latest operation changed, and of some that earlier
    /// operations did. For inspecting them after a death: unlike in an undo, unrelated ones do no harm.
    pub(crate) fn noted(&self) -> impl Iterator<Item = u64> {
        self.entries
            .iter()
            .map(|entry| entry.index.load(Ordering::Relaxed))
    }

    /// Notes that a reset is in progress. The caller must hold the lock and have stored the reset's scope.
    pub(crate) fn mark_reset(&self) {
        self.mark(RESET_MARKER);
    }

    /// Notes that the holds are being recounted. The caller must hold the lock and have found nothing to undo.
    pub(crate) fn mark_rebuild(&self) {
        self.mark(REBUILD_MARKER);
    }

    fn mark(&self, marker: u64) {
        let sequence = self.word.load(Ordering::Relaxed) & !COUNT_MASK;
        // What the marker refers to must be in place before the marker makes it count.
        compiler_fence(Ordering::SeqCst);
        self.word.store(sequence | marker, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Advances the sequence and sets the count to zero: the set is consistent from here on. Returns the new
    /// sequence.
    #[inline(always)]
    pub(crate) fn close(&self) -> u64 {
        close(self.word, self.word.load(Ordering::Relaxed) & !COUNT_MASK)
    }

    /// The sequence number, for a reader without the lock; `None` while an operation is in progress.
    pub(crate) fn sequence_if_idle(&self) -> Option<u64> {
        // Synchronises with the release store in `close`, so everything committed before is visible.
        let word = load_acquire(self.word);
        (word & COUNT_MASK == 0).then_some(word)
    }

    /// Whether nothing has changed since `sequence` was read. If so, the reader may use what it has loaded in
    /// between.
    pub(crate) fn unchanged_since(&self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == sequence
    }

    /// Whether operations may change the word at `index`. The definition and the lock come before the journal's word,
    /// and its entries hold what is being undone: an index of one of those is damage, and writing there would take
    /// the lock away from its holder.
    fn may_change(&self, index: usize) -> bool {
        let address = self.extent.as_ptr().wrapping_add(index).addr();
        let entries = self.entries.as_ptr_range();
        address > std::ptr::from_ref(self.word).addr()
            && !(entries.start.addr()..entries.end.addr()).contains(&address)
    }

    #[inline]
    fn index_of(&self, word: &AtomicU64) -> Option<usize> {
        let base = self.extent.as_ptr().addr();
        let distance = std::ptr::from_ref(word).addr().wrapping_sub(base);
        let index = distance / size_of::<AtomicU64>();
        (index < self.extent.len()).then_some(index)
    }
}

/// An operation that changes a single word and needs no entry. The caller must hold the lock and have found the
/// journal idle.
pub(crate) struct LoneChange<'a> {
    journal_word: &'a AtomicU64,
    sequence: u64,
}

impl<'a> LoneChange<'a> {
    /// Announces the change in the journal word.
    #[inline(always)]
    pub(crate) fn begin(journal_word: &'a AtomicU64) -> Self {
        let sequence = journal_word.load(Ordering::Relaxed) & !COUNT_MASK;
        journal_word.store(sequence | CHANGE_MARKER, Ordering::Release);
        fence_before_change();
        Self {
            journal_word,
            sequence,
        }
    }

    /// Changes the word, and ends the operation.
    #[inline(always)]
    pub(crate) fn change(self, word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Relaxed);
        close(self.journal_word, self.sequence);
    }
}

/// Stores the sequence after `sequence`, with a count of zero, and returns it.
#[inline(always)]
fn close(journal_word: &AtomicU64, sequence: u64) -> u64 {
    let next = sequence.wrapping_add(1 << COUNT_BITS);
    journal_word.store(next, Ordering::Release);
    // The release holds back what comes before it, not what comes after: the next operation's entries must not
    // overwrite those of this one while they still count.
    compiler_fence(Ordering::SeqCst);
    next
}

/// An operation in progress. If it is dropped without a commit, it is undone.
pub(crate) struct Transaction<'a> {
    journal: Journal<'a>,
    sequence: u64,
    count: usize,
    overflowed: bool,
}

impl Transaction<'_> {
    /// Stores `value` into `word`, which lies in the journal's extent, after noting its old value.
    #[inline]
    pub(crate) fn store(&mut self, word: &AtomicU64, value: u64) {
        let old = word.load(Ordering::Relaxed);
        if old == value {
            return;
        }
        let (Some(index), Some(entry)) = (self.journal.index_of(word), self.journal.entries.get(self.count))
        else {
            self.overflowed = true;
            return;
        };
        entry.index.store(index as u64, Ordering::Relaxed);
        entry.old.store(old, Ordering::Relaxed);
        self.count += 1;
        // The entry must be in place before the count includes it, and the count before the word changes. For a
        // survivor of SIGKILL, program order is enough; for readers on other processors, the fence orders the count
        // before the word.
        self.journal
            .word
            .store(self.sequence | self.count as u64, Ordering::Release);
        fence_before_change();
        word.store(value, Ordering::Relaxed);
    }

    /// Adds `amount` to `word`, saturating.
    #[inline]
    pub(crate) fn add(&mut self, word: &AtomicU64, amount: u64) {
        self.store(word, word.load(Ordering::Relaxed).saturating_add(amount));
    }

    /// Subtracts `amount` from `word`, saturating.
    #[inline]
    pub(crate) fn subtract(&mut self, word: &AtomicU64, amount: u64) {
        self.store(word, word.load(Ordering::Relaxed).saturating_sub(amount));
    }

    /// [`count`], within an operation in progress.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "what counts is an operation in progress")]
    pub(crate) fn count(&mut self, word: &AtomicU64, amount: u64) {
        count(word, amount);
    }

    /// Stores `value` if it is larger. For maxima, which are not journalled either: see [`count`](Self::count).
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "as of `count`")]
    pub(crate) fn raise(&mut self, word: &AtomicU64, value: u64) {
        if value > word.load(Ordering::Relaxed) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Makes the changes final. Later changes belong to an operation of their own.
    #[inline(always)]
    pub(crate) fn commit(&mut self) -> Result<(), JournalOverflow> {
        if self.overflowed {
            return Err(JournalOverflow);
        }
        if self.count > 0 {
            self.sequence = self.journal.close();
            self.count = 0;
        }
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count > 0 {
            let Journal {
                word,
                entries,
                extent,
            } = self.journal;
            undo_and_close(word, entries, extent, self.count);
        }
    }
}

/// Undoes what a transaction has changed so far. It takes the parts of the journal, not the journal itself, so that
/// the journal can stay in registers up to here.
#[cold]
#[inline(never)]
fn undo_and_close(word: &AtomicU64, entries: &[JournalEntry], extent: &[AtomicU64], count: usize) {
    let journal = Journal::new(word, entries, extent);
    // The transaction's own entries are sound.
    let _ = journal.undo(count);
    journal.close();
}

/// Adds `amount`, saturating, to a word that only people read and no decision depends on. It is not journalled: if
/// the operation is undone after a death, the count may have changed anyway.
#[inline(always)]
pub(crate) fn count(word: &AtomicU64, amount: u64) {
    word.store(
        word.load(Ordering::Relaxed).saturating_add(amount),
        Ordering::Relaxed,
    );
}

#[inline(always)]
fn fence_before_change() {
    // On x86-64 this only stops the compiler; on weaker machines it orders the count before the change.
    fence(Ordering::Release);
}
