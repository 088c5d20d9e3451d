//! The queues of a shard in shared memory, as the rules of the queue see them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::row_references::RowReferences;
use crate::engine::shard::shard_memory::ShardMemory;
use crate::error::Error;
use crate::queue::{Damaged, Queue, QueueEnd, QueueMut, TableWord, TicketWord};
use crate::shm::lock::journal::Transaction;

/// The queues, for reading.
#[derive(Clone, Copy)]
pub(crate) struct QueueWords<'a>(pub(crate) &'a ShardMemory);

/// The queues, changed through the journal.
pub(crate) struct JournalledQueue<'a, 't, 'j> {
    pub(crate) memory: &'a ShardMemory,
    pub(crate) transaction: &'t mut Transaction<'j>,
}

/// The queues, changed at once: for what can be repeated from the start.
pub(crate) struct RepeatableQueue<'a>(pub(crate) &'a ShardMemory);

impl ShardMemory {
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

    /// The word that an end of a queue is kept in, and what it becomes with `value` for that end.
    fn with_end(&self, queue: u64, end: QueueEnd, value: u64) -> Option<(&AtomicU64, u64)> {
        let control = self.control();
        Some(match (self.row(queue)?.row_references(), end) {
            (None, QueueEnd::Head) => (&control.queue_head, value),
            (None, QueueEnd::Tail) => (&control.queue_tail, value),
            (Some(row_references), end) => {
                let before = RowReferences(row_references.load(Ordering::Relaxed));
                let after = match end {
                    QueueEnd::Head => before.with_head(value),
                    QueueEnd::Tail => before.with_tail(value),
                };
                (row_references, after.0)
            }
        })
    }
}

impl LockedShard<'_> {
    /// Changes the queues in a transaction of its own, and counts that. Where they are found damaged, they are made
    /// again from the states of their tickets first.
    pub(in crate::engine) fn change_queue<T>(
        &self,
        counter: Option<&AtomicU64>,
        mut change: impl FnMut(&mut JournalledQueue<'_, '_, '_>) -> Result<T, Damaged>,
    ) -> Result<T, Box<Error>> {
        let shard = self.shard;
        let mut try_change = || {
            let mut transaction = shard.memory.journal().begin();
            let changed = change(&mut JournalledQueue {
                memory: shard.memory,
                transaction: &mut transaction,
            });
            // Dropped without a commit, the transaction is undone.
            let changed = changed.ok()?;
            if let Some(counter) = counter {
                transaction.add(counter, 1);
            }
            Some(shard.commit(transaction).map(|()| changed))
        };
        if let Some(answer) = try_change() {
            return answer;
        }
        self.engine.rebuild_or_poison(shard)?;
        try_change().unwrap_or_else(|| Err(shard.poisoned()))
    }
}

impl Queue for QueueWords<'_> {
    fn capacity(&self) -> u64 {
        self.0.ticket_capacity()
    }

    fn queues(&self) -> u64 {
        self.0.row_count()
    }

    fn queue_of(&self, index: u64) -> u64 {
        self.0.ticket(index).map_or(0, |ticket| ticket.row().index)
    }

    fn load_end(&self, queue: u64, end: QueueEnd) -> u64 {
        let Some(row) = self.0.row(queue) else { return 0 };
        match (row.row_references(), end) {
            (None, QueueEnd::Head) => self.0.control().queue_head.load(Ordering::Relaxed),
            (None, QueueEnd::Tail) => self.0.control().queue_tail.load(Ordering::Relaxed),
            (Some(row_references), QueueEnd::Head) => {
                RowReferences(row_references.load(Ordering::Relaxed)).head()
            }
            (Some(row_references), QueueEnd::Tail) => {
                RowReferences(row_references.load(Ordering::Relaxed)).tail()
            }
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

macro_rules! reads_as_queue_words {
    ($queue:ty, |$this:ident| $memory:expr) => {
        impl Queue for $queue {
            fn capacity(&self) -> u64 {
                let $this = self;
                QueueWords($memory).capacity()
            }

            fn queues(&self) -> u64 {
                let $this = self;
                QueueWords($memory).queues()
            }

            fn queue_of(&self, index: u64) -> u64 {
                let $this = self;
                QueueWords($memory).queue_of(index)
            }

            fn load_end(&self, queue: u64, end: QueueEnd) -> u64 {
                let $this = self;
                QueueWords($memory).load_end(queue, end)
            }

            fn load(&self, word: TableWord) -> u64 {
                let $this = self;
                QueueWords($memory).load(word)
            }

            fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
                let $this = self;
                QueueWords($memory).load_ticket(index, word)
            }
        }
    };
}

reads_as_queue_words!(JournalledQueue<'_, '_, '_>, |queue| queue.memory);
reads_as_queue_words!(RepeatableQueue<'_>, |queue| queue.0);

impl QueueMut for JournalledQueue<'_, '_, '_> {
    fn store_end(&mut self, queue: u64, end: QueueEnd, value: u64) {
        if let Some((word, value)) = self.memory.with_end(queue, end, value) {
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

impl QueueMut for RepeatableQueue<'_> {
    fn store_end(&mut self, queue: u64, end: QueueEnd, value: u64) {
        if let Some((word, value)) = self.0.with_end(queue, end, value) {
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
