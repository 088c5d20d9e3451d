//! The order among keys in shared memory, as its rules see it.
//!
//! None of its words is journalled. Who is ordered follows from who waits, so whoever recovers a shard
//! [finds that anew](crate::engine::recover::restored_order). How far a key was served is stored once the grant is
//! committed: if a process dies in between, the key is served one request more.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::order::{KeyWord, Order, OrderMut, OrderWord};
use crate::shm::layout::shard_memory::ShardMemory;

/// The order of a shard.
#[derive(Clone, Copy)]
pub(crate) struct OrderWords<'a> {
    memory: &'a ShardMemory,
}

impl<'a> OrderWords<'a> {
    pub(crate) fn of(memory: &'a ShardMemory) -> Self {
        Self { memory }
    }

    fn word(&self, word: OrderWord) -> Option<&'a AtomicU64> {
        let order = self.memory.order()?;
        Some(match word {
            OrderWord::VirtualTime => &order.virtual_time,
            OrderWord::LatestTag => &order.latest_tag,
            OrderWord::Contention => &order.contention,
            OrderWord::HeapLength => &order.heap_length,
            OrderWord::Newcomers => &order.newcomers,
            OrderWord::Weight => &order.weight,
            OrderWord::Sequence => &order.sequence,
        })
    }

    fn key_word(&self, row: u64, word: KeyWord) -> Option<&'a AtomicU64> {
        let order = self.memory.row_order(row)?;
        Some(match word {
            KeyWord::Tag => &order.tag,
            KeyWord::Floor => &order.floor,
            KeyWord::Place => &order.place,
            KeyWord::Neighbours => &order.neighbours,
        })
    }
}

impl Order for OrderWords<'_> {
    fn capacity(&self) -> u64 {
        self.memory.ticket_capacity()
    }

    fn rows(&self) -> u64 {
        self.memory.row_count()
    }

    fn load(&self, word: OrderWord) -> u64 {
        self.word(word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn load_key(&self, row: u64, word: KeyWord) -> u64 {
        self.key_word(row, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn load_entry(&self, index: u64) -> [u64; 2] {
        self.memory.order_entry(index).map_or([0; 2], |entry| {
            [&entry.tag, &entry.key].map(|word| word.load(Ordering::Relaxed))
        })
    }
}

impl OrderMut for OrderWords<'_> {
    fn store(&mut self, word: OrderWord, value: u64) {
        if let Some(word) = self.word(word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn store_key(&mut self, row: u64, word: KeyWord, value: u64) {
        if let Some(word) = self.key_word(row, word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn store_entry(&mut self, index: u64, [tag, key]: [u64; 2]) {
        if let Some(entry) = self.memory.order_entry(index) {
            entry.tag.store(tag, Ordering::Relaxed);
            entry.key.store(key, Ordering::Relaxed);
        }
    }
}
