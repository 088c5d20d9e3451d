//! All or nothing for operations that change several words: an undo journal, written under the set's lock.
//!
//! The old value of a word goes into the journal, and the count behind it, before the word changes. After SIGKILL
//! the survivors see a prefix of the stores in program order, so whatever was changed is in the journal. One store
//! that sets the count to zero commits. Undoing is idempotent: a recoverer may die anywhere and the next one
//! starts over.
//!
//! The journal word packs the count into its low byte and a sequence number above it, which moves on with every
//! commit; together they let readers without the lock tell a consistent copy from a torn one.

#[cfg(test)]
mod journal_tests;

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::{JOURNAL_ENTRIES, JournalEntry};

/// Instead of a count: a reset is being carried out, and is carried to its end by the process that finds it.
pub(crate) const RESET_MARKER: u64 = 255;

/// Instead of a count: the holds are being counted again, which is begun anew by the process that finds it.
pub(crate) const REBUILD_MARKER: u64 = 254;

/// Instead of a count: an operation changes one word, by one store. It is done or not, so nothing is put back.
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

/// What the journal says of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalState {
    /// Nothing is in progress.
    Idle,
    /// That many words may have changed and are to be put back.
    Undo(usize),
    /// A reset is to be carried to its end.
    Reset,
    /// The holds are to be counted again.
    Rebuild,
    /// One word is changed by one store, or was: it is done or not.
    Change,
    /// A count that no operation writes.
    Damaged(u64),
}

/// The journal has no room for another word, or the word lies outside the extent it guards. The operation was
/// undone. Either is a mistake in the library, never in the caller's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalOverflow;

impl<'a> Journal<'a> {
    /// The journal at `word` with its `entries`, which guards what lies behind the word in `extent`.
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

    /// Not zero unless nothing is in progress.
    #[inline(always)]
    pub(crate) fn unfinished(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & COUNT_MASK
    }

    /// Starts an operation. The caller holds the lock and found the journal idle.
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

    /// Puts back what an operation that did not commit had changed, and leaves the journal as it is: the caller, who
    /// holds the lock, [closes](Self::close) it. Entries that name a word which no operation changes are damage: they
    /// are skipped, and reported as `false`.
    #[must_use]
    pub(crate) fn undo(&self, count: usize) -> bool {
        let mut sound = true;
        // Latest first: where a word was journalled twice, its oldest value must be the one that stays.
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

    /// Where in the extent the words are that the latest operation changed, and such as operations before it did. For a
    /// look at them after a death: unlike for an undo, it does no harm if they have nothing to do with it.
    pub(crate) fn noted(&self) -> impl Iterator<Item = u64> {
        self.entries
            .iter()
            .map(|entry| entry.index.load(Ordering::Relaxed))
    }

    /// Notes that a reset is under way. The caller holds the lock and has stored the reset's scope.
    pub(crate) fn mark_reset(&self) {
        self.mark(RESET_MARKER);
    }

    /// Notes that the holds are being counted again. The caller holds the lock and found nothing to undo.
    pub(crate) fn mark_rebuild(&self) {
        self.mark(REBUILD_MARKER);
    }

    fn mark(&self, marker: u64) {
        let sequence = self.word.load(Ordering::Relaxed) & !COUNT_MASK;
        // What the marker refers to must be in place before the marker says that it counts.
        compiler_fence(Ordering::SeqCst);
        self.word.store(sequence | marker, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Moves the sequence on and sets the count to zero: the set is consistent from here on. Answers the sequence.
    #[inline(always)]
    pub(crate) fn close(&self) -> u64 {
        close(self.word, self.word.load(Ordering::Relaxed) & !COUNT_MASK)
    }

    /// The sequence number, for a reader without the lock; `None` while an operation is in progress.
    pub(crate) fn sequence_if_idle(&self) -> Option<u64> {
        // Synchronises with the release store in `close`: what was committed before is seen.
        let word = load_acquire(self.word);
        (word & COUNT_MASK == 0).then_some(word)
    }

    /// Whether nothing was changed since `sequence` was read. What the reader loaded in between may be used if so.
    pub(crate) fn unchanged_since(&self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == sequence
    }

    /// Whether operations change the word of that index. The definition and the lock lie before the journal's word,
    /// and its entries hold what is being undone: an index that names one of those is damage, and writing there
    /// would take the lock from under its holder.
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

/// An operation that changes one word, for which it takes no entry. The caller holds the lock and found the journal idle.
pub(crate) struct LoneChange<'a> {
    journal_word: &'a AtomicU64,
    sequence: u64,
}

impl<'a> LoneChange<'a> {
    /// Says in the journal's word that it begins.
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

    /// Changes the word, and ends.
    #[inline(always)]
    pub(crate) fn change(self, word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Relaxed);
        close(self.journal_word, self.sequence);
    }
}

/// Stores the sequence that follows on one, with a count of zero, and answers it.
#[inline(always)]
fn close(journal_word: &AtomicU64, sequence: u64) -> u64 {
    let next = sequence.wrapping_add(1 << COUNT_BITS);
    journal_word.store(next, Ordering::Release);
    // The release holds back what came before, not what comes after: the entries of the next operation must not
    // be written over those of this one while they still count.
    compiler_fence(Ordering::SeqCst);
    next
}

/// An operation in progress. Dropped without a commit, it is undone.
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
        // The entry must be in place before the count says so, and the count before the word changes. For a
        // survivor of SIGKILL the program order is enough; for readers on other processors the fence orders
        // the count before the word.
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

    /// As [`count`], in an operation in progress.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "what counts is an operation in progress")]
    pub(crate) fn count(&mut self, word: &AtomicU64, amount: u64) {
        count(word, amount);
    }

    /// As [`count`](Self::count), of the most that there ever was of something: stores `value` where it is more.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "as of `count`")]
    pub(crate) fn raise(&mut self, word: &AtomicU64, value: u64) {
        if value > word.load(Ordering::Relaxed) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Makes the changes final. What is changed after it, is changed by an operation of its own.
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

/// Undoes what a transaction has changed so far. Given what the journal consists of, and not the journal, so that this can be
/// kept in registers up to here.
#[cold]
#[inline(never)]
fn undo_and_close(word: &AtomicU64, entries: &[JournalEntry], extent: &[AtomicU64], count: usize) {
    let journal = Journal::new(word, entries, extent);
    // What a transaction wrote itself is sound.
    let _ = journal.undo(count);
    journal.close();
}

/// Adds `amount`, saturating, to a word that is counted for people and that nothing is decided by. It is not journalled:
/// where the operation is undone after a death, it may have been counted all the same.
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
