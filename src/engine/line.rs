//! The line of a set in shared memory, as the rules of the line see it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::SetMemory;
use super::segment::LockedSet;
use crate::error::Error;
use crate::queue::{Damaged, Line, LineMut, LineWord, TicketWord};
use crate::shm::journal::Transaction;

/// The line, for reading.
#[derive(Clone, Copy)]
pub(crate) struct LineWords<'a>(pub(crate) &'a SetMemory);

/// The line, changed through the journal.
pub(crate) struct JournalledLine<'a, 't, 'j> {
    pub(crate) memory: &'a SetMemory,
    pub(crate) transaction: &'t mut Transaction<'j>,
}

/// The line, changed at once: for what can be repeated from the start.
pub(crate) struct RepeatableLine<'a>(pub(crate) &'a SetMemory);

impl SetMemory {
    fn line_word(&self, word: LineWord) -> &AtomicU64 {
        let control = self.control();
        match word {
            LineWord::Head => &control.queue_head,
            LineWord::Tail => &control.queue_tail,
            LineWord::Free => &control.free_ticket,
            LineWord::Untouched => &control.untouched_ticket,
            LineWord::Serial => &control.ticket_serial,
            LineWord::Length => &control.queued,
            LineWord::LongestLength => &control.queued_high_water,
        }
    }

    fn ticket_word(&self, index: u64, word: TicketWord) -> Option<&AtomicU64> {
        let ticket = self.ticket(index)?;
        Some(match word {
            TicketWord::Owner => ticket.owner(),
            TicketWord::State => ticket.state(),
            TicketWord::Next => ticket.next(),
            TicketWord::Previous => ticket.previous(),
        })
    }
}

impl LockedSet<'_> {
    /// Changes the line in a transaction of its own, and counts that. Where the line is found damaged, it is made again
    /// from the states of its tickets first.
    pub(super) fn change_line<T>(
        &self,
        counter: Option<&AtomicU64>,
        mut change: impl FnMut(&mut JournalledLine<'_, '_, '_>) -> Result<T, Damaged>,
    ) -> Result<T, Box<Error>> {
        let set = self.set;
        let mut try_change = || {
            let mut transaction = set.memory.journal().begin();
            let changed = change(&mut JournalledLine {
                memory: &set.memory,
                transaction: &mut transaction,
            });
            // Dropped without a commit, the transaction is undone.
            let changed = changed.ok()?;
            if let Some(counter) = counter {
                transaction.add(counter, 1);
            }
            Some(set.commit(transaction).map(|()| changed))
        };
        if let Some(answer) = try_change() {
            return answer;
        }
        self.engine.recount_or_poison(set)?;
        try_change().unwrap_or_else(|| Err(set.poisoned()))
    }
}

impl Line for LineWords<'_> {
    fn capacity(&self) -> u64 {
        self.0.ticket_capacity()
    }

    fn load(&self, word: LineWord) -> u64 {
        self.0.line_word(word).load(Ordering::Relaxed)
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        self.0
            .ticket_word(index, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl Line for JournalledLine<'_, '_, '_> {
    fn capacity(&self) -> u64 {
        LineWords(self.memory).capacity()
    }

    fn load(&self, word: LineWord) -> u64 {
        LineWords(self.memory).load(word)
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        LineWords(self.memory).load_ticket(index, word)
    }
}

impl LineMut for JournalledLine<'_, '_, '_> {
    fn store(&mut self, word: LineWord, value: u64) {
        self.transaction.store(self.memory.line_word(word), value);
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        if let Some(word) = self.memory.ticket_word(index, word) {
            self.transaction.store(word, value);
        }
    }
}

impl Line for RepeatableLine<'_> {
    fn capacity(&self) -> u64 {
        LineWords(self.0).capacity()
    }

    fn load(&self, word: LineWord) -> u64 {
        LineWords(self.0).load(word)
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        LineWords(self.0).load_ticket(index, word)
    }
}

impl LineMut for RepeatableLine<'_> {
    fn store(&mut self, word: LineWord, value: u64) {
        self.0.line_word(word).store(value, Ordering::Relaxed);
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        if let Some(word) = self.0.ticket_word(index, word) {
            word.store(value, Ordering::Relaxed);
        }
    }
}
