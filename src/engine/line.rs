//! The lines of a part in shared memory, as the rules of the line see them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::locked::LockedPart;
use super::memory::PartMemory;
use super::ties::Ties;
use crate::error::Error;
use crate::queue::{Damaged, Line, LineEnd, LineMut, TableWord, TicketWord};
use crate::shm::journal::Transaction;

/// The lines, for reading.
#[derive(Clone, Copy)]
pub(crate) struct LineWords<'a>(pub(crate) &'a PartMemory);

/// The lines, changed through the journal.
pub(crate) struct JournalledLine<'a, 't, 'j> {
    pub(crate) memory: &'a PartMemory,
    pub(crate) transaction: &'t mut Transaction<'j>,
}

/// The lines, changed at once: for what can be repeated from the start.
pub(crate) struct RepeatableLine<'a>(pub(crate) &'a PartMemory);

impl PartMemory {
    fn table_word(&self, word: TableWord) -> &AtomicU64 {
        let control = self.control();
        match word {
            TableWord::Free => &control.free_ticket,
            TableWord::Untouched => &control.untouched_ticket,
            TableWord::Serial => &control.ticket_serial,
            TableWord::Length => &control.queued,
            TableWord::LongestLength => &control.queued_high_water,
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

    /// The word that an end of a line is kept in, and what it becomes with `value` for that end.
    fn with_end(&self, line: u64, end: LineEnd, value: u64) -> Option<(&AtomicU64, u64)> {
        let control = self.control();
        Some(match (self.row(line)?.ties(), end) {
            (None, LineEnd::Head) => (&control.queue_head, value),
            (None, LineEnd::Tail) => (&control.queue_tail, value),
            (Some(ties), end) => {
                let before = Ties(ties.load(Ordering::Relaxed));
                let after = match end {
                    LineEnd::Head => before.with_head(value),
                    LineEnd::Tail => before.with_tail(value),
                };
                (ties, after.0)
            }
        })
    }
}

impl LockedPart<'_> {
    /// Changes the lines in a transaction of its own, and counts that. Where they are found damaged, they are made
    /// again from the states of their tickets first.
    pub(super) fn change_line<T>(
        &self,
        counter: Option<&AtomicU64>,
        mut change: impl FnMut(&mut JournalledLine<'_, '_, '_>) -> Result<T, Damaged>,
    ) -> Result<T, Box<Error>> {
        let part = self.part;
        let mut try_change = || {
            let mut transaction = part.memory.journal().begin();
            let changed = change(&mut JournalledLine {
                memory: part.memory,
                transaction: &mut transaction,
            });
            // Dropped without a commit, the transaction is undone.
            let changed = changed.ok()?;
            if let Some(counter) = counter {
                transaction.add(counter, 1);
            }
            Some(part.commit(transaction).map(|()| changed))
        };
        if let Some(answer) = try_change() {
            return answer;
        }
        self.engine.recount_or_poison(part)?;
        try_change().unwrap_or_else(|| Err(part.poisoned()))
    }
}

impl Line for LineWords<'_> {
    fn capacity(&self) -> u64 {
        self.0.ticket_capacity()
    }

    fn lines(&self) -> u64 {
        self.0.row_count()
    }

    fn line_of(&self, index: u64) -> u64 {
        self.0.ticket(index).map_or(0, |ticket| ticket.row().index)
    }

    fn load_end(&self, line: u64, end: LineEnd) -> u64 {
        let Some(row) = self.0.row(line) else { return 0 };
        match (row.ties(), end) {
            (None, LineEnd::Head) => self.0.control().queue_head.load(Ordering::Relaxed),
            (None, LineEnd::Tail) => self.0.control().queue_tail.load(Ordering::Relaxed),
            (Some(ties), LineEnd::Head) => Ties(ties.load(Ordering::Relaxed)).head(),
            (Some(ties), LineEnd::Tail) => Ties(ties.load(Ordering::Relaxed)).tail(),
        }
    }

    fn load(&self, word: TableWord) -> u64 {
        self.0.table_word(word).load(Ordering::Relaxed)
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        self.0
            .ticket_word(index, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

macro_rules! reads_as_line_words {
    ($line:ty, |$this:ident| $memory:expr) => {
        impl Line for $line {
            fn capacity(&self) -> u64 {
                let $this = self;
                LineWords($memory).capacity()
            }

            fn lines(&self) -> u64 {
                let $this = self;
                LineWords($memory).lines()
            }

            fn line_of(&self, index: u64) -> u64 {
                let $this = self;
                LineWords($memory).line_of(index)
            }

            fn load_end(&self, line: u64, end: LineEnd) -> u64 {
                let $this = self;
                LineWords($memory).load_end(line, end)
            }

            fn load(&self, word: TableWord) -> u64 {
                let $this = self;
                LineWords($memory).load(word)
            }

            fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
                let $this = self;
                LineWords($memory).load_ticket(index, word)
            }
        }
    };
}

reads_as_line_words!(JournalledLine<'_, '_, '_>, |line| line.memory);
reads_as_line_words!(RepeatableLine<'_>, |line| line.0);

impl LineMut for JournalledLine<'_, '_, '_> {
    fn store_end(&mut self, line: u64, end: LineEnd, value: u64) {
        if let Some((word, value)) = self.memory.with_end(line, end, value) {
            self.transaction.store(word, value);
        }
    }

    fn store(&mut self, word: TableWord, value: u64) {
        self.transaction.store(self.memory.table_word(word), value);
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        if let Some(word) = self.memory.ticket_word(index, word) {
            self.transaction.store(word, value);
        }
    }
}

impl LineMut for RepeatableLine<'_> {
    fn store_end(&mut self, line: u64, end: LineEnd, value: u64) {
        if let Some((word, value)) = self.0.with_end(line, end, value) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn store(&mut self, word: TableWord, value: u64) {
        self.0.table_word(word).store(value, Ordering::Relaxed);
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        if let Some(word) = self.0.ticket_word(index, word) {
            word.store(value, Ordering::Relaxed);
        }
    }
}
