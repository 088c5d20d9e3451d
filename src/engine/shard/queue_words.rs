//! The queues of a shard in shared memory, as the rules of the queue see them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::shard::locked_shard::LockedShard;
use crate::error::Error;
use crate::queue::{Damaged, Queue, QueueEnd, QueueMut, TableWord, TicketWord};
use crate::shm::layout::row::Row;
use crate::shm::layout::row_references::RowReferences;
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::lock::journal::Transaction;
use crate::shm::lock::store::Store;

/// The queues of a shard, and how to change them. `()` can only read.
#[derive(Clone, Copy)]
pub(crate) struct QueueWords<'a, S = ()> {
    memory: &'a ShardMemory,
    pub(in crate::engine) store: S,
}

/// The queues, changed through the journal.
pub(in crate::engine) type JournalledQueue<'a, 't, 'j> = QueueWords<'a, &'t mut Transaction<'j>>;

impl<'a> QueueWords<'a> {
    pub(crate) fn reading(memory: &'a ShardMemory) -> Self {
        Self { memory, store: () }
    }
}

impl<'a, S: Store> QueueWords<'a, S> {
    pub(crate) fn changing(memory: &'a ShardMemory, store: S) -> Self {
        Self { memory, store }
    }
}

impl ShardMemory {
    /// The ticket at an end of a row's queue; 0 if nobody waits there.
    #[inline(always)]
    pub(in crate::engine) fn queue_end(&self, row: Row<'_>, end: QueueEnd) -> u64 {
        let references = |word: &AtomicU64| RowReferences(word.load(Ordering::Relaxed));
        match (row.row_references(), end) {
            (None, QueueEnd::Head) => self.control().queue_head.load(Ordering::Relaxed),
            (None, QueueEnd::Tail) => self.control().queue_tail.load(Ordering::Relaxed),
            (Some(word), QueueEnd::Head) => references(word).head(),
            (Some(word), QueueEnd::Tail) => references(word).tail(),
        }
    }

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

    /// The word that holds an end of a queue, and what to store there so that this end becomes `value`.
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
    /// Changes the queues in a transaction of its own, and adds one to `counter`. If they turn out to be damaged,
    /// they are first rebuilt from the states of their tickets.
    pub(in crate::engine) fn change_queue<T>(
        &self,
        counter: Option<&AtomicU64>,
        mut change: impl FnMut(&mut JournalledQueue<'_, '_, '_>) -> Result<T, Damaged>,
    ) -> Result<T, Box<Error>> {
        let shard = self.shard;
        let mut try_change = || {
            let mut transaction = shard.memory.journal().begin();
            let changed = change(&mut QueueWords::changing(shard.memory, &mut transaction));
            // A transaction that is dropped without a commit is rolled back.
            let changed = changed.ok()?;
            if let Some(counter) = counter {
                transaction.count(counter, 1);
            }
            Some(shard.commit(&mut transaction).map(|()| changed))
        };
        if let Some(answer) = try_change() {
            return answer;
        }
        self.rebuild_or_poison()?;
        try_change().unwrap_or_else(|| Err(shard.poisoned()))
    }
}

impl<S> Queue for QueueWords<'_, S> {
    fn capacity(&self) -> u64 {
        self.memory.ticket_capacity()
    }

    fn queues(&self) -> u64 {
        self.memory.row_count()
    }

    fn queue_of(&self, index: u64) -> u64 {
        self.memory.ticket(index).map_or(0, |ticket| ticket.row().index)
    }

    fn load_end(&self, queue: u64, end: QueueEnd) -> u64 {
        let row = self.memory.row(queue);
        row.map_or(0, |row| self.memory.queue_end(row, end))
    }

    fn load(&self, word: TableWord) -> u64 {
        self.memory.table_word(word).load(Ordering::Relaxed)
    }

    fn load_ticket(&self, index: u64, word: TicketWord) -> u64 {
        self.memory
            .ticket_word(index, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl<S: Store> QueueMut for QueueWords<'_, S> {
    fn store_end(&mut self, queue: u64, end: QueueEnd, value: u64) {
        if let Some((word, value)) = self.memory.with_end(queue, end, value) {
            self.store.store(word, value);
        }
    }

    fn store(&mut self, word: TableWord, value: u64) {
        self.store.store(self.memory.table_word(word), value);
    }

    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64) {
        if let Some(word) = self.memory.ticket_word(index, word) {
            self.store.store(word, value);
        }
    }
}
