//! The parts of one shard in a region.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::geometry::{ShardGeometry, list_words};
use super::places::{HOLD_WORDS, HoldPlace, TICKET_LIMIT_WORDS, TICKET_WORDS, TicketPlace};
use super::records::{
    HoldLabel, HoldOrder, JOURNAL_ENTRIES, JournalEntry, LimitCounters, Order, OrderEntry, RowOrder,
    SetControl, Ticket,
};
use super::row::Row;
use super::row_list::{RowBits, RowList};
use crate::shm::file::region::{Mapped, MappedRecord, OutOfRegion, Region, split_record};
use crate::shm::lock::journal::{Journal, JournalOverflow};
use crate::units::{BUCKET_ROWS, BUCKET_TAG_WORDS};

/// The parts of one shard, located once.
#[derive(Debug)]
pub(crate) struct ShardMemory {
    /// The number of the shard in its set.
    pub(crate) index: u32,
    pub(crate) geometry: ShardGeometry,
    /// When this process may next look for dead holders, on the boot-time clock.
    pub(crate) next_probe: AtomicU64,
    control: MappedRecord<SetControl>,
    entries: Mapped<JournalEntry>,
    extent: Mapped<AtomicU64>,
    counters: Mapped<LimitCounters>,
    /// The states of the limits that all keys share.
    overall: Mapped<AtomicU64>,
    /// The order among keys and the entries of its heap, if keys share some limit.
    order: Mapped<Order>,
    order_entries: Mapped<OrderEntry>,
    /// In a keyed table: the tags of its buckets, and the names of its keys.
    tags: Mapped<AtomicU64>,
    names: Mapped<AtomicU64>,
    name_words: usize,
    /// In a keyed table whose limits hosts share: the states of the shard itself, and its two lists of rows.
    leases: Mapped<AtomicU64>,
    rows: Mapped<AtomicU64>,
    row_count: u64,
    /// Words from one row to the next, of a row's head, and of the states of its limits.
    row_stride: usize,
    row_head: usize,
    state_words: usize,
    holds: Mapped<AtomicU64>,
    hold_capacity: u64,
    /// Words from one hold to the next, and words of amounts in each.
    hold_stride: usize,
    hold_amounts: usize,
    pub(crate) labels: Mapped<HoldLabel>,
    tickets: Mapped<AtomicU64>,
    ticket_capacity: u64,
    /// Words from one ticket to the next, and limits in each.
    ticket_stride: usize,
    ticket_limits: usize,
}

/// Rows whose tags share a word.
const ROWS_OF_TAG_WORD: u64 = BUCKET_ROWS / BUCKET_TAG_WORDS;

/// The most rows that an operation can have changed, according to its journal.
#[cfg(test)]
const MAX_NOTED_ROWS: usize = JOURNAL_ENTRIES * ROWS_OF_TAG_WORD as usize;

impl ShardMemory {
    /// Locates the shard with number `index`.
    pub(crate) fn locate(
        region: &Arc<Region>,
        geometry: &ShardGeometry,
        index: u32,
    ) -> Result<Self, OutOfRegion> {
        let shape = geometry.shape;
        Ok(Self {
            index,
            geometry: *geometry,
            next_probe: AtomicU64::new(0),
            control: region.mapped_record(geometry.control_offset)?,
            entries: region.mapped_records(geometry.journal_offset, JOURNAL_ENTRIES as u64)?,
            extent: region.mapped_words(geometry.extent_offset, geometry.extent_size / 8)?,
            counters: region.mapped_records(geometry.counters_offset, shape.limits)?,
            overall: region.mapped_words(geometry.overall_offset, shape.overall_words)?,
            order: region.mapped_records(geometry.order_offset, shape.orders())?,
            order_entries: region.mapped_records(
                geometry.order_offset + size_of::<Order>() as u64 * shape.orders(),
                shape.orders() * shape.tickets,
            )?,
            tags: region.mapped_words(geometry.tags_offset, shape.buckets * BUCKET_TAG_WORDS)?,
            names: region.mapped_words(
                geometry.names_offset,
                if shape.buckets == 0 {
                    0
                } else {
                    geometry.rows * shape.name_words
                },
            )?,
            name_words: shape.name_words as usize,
            leases: region.mapped_words(
                geometry.leases_offset,
                if shape.lease_lists == 0 {
                    0
                } else {
                    shape.state_words + 2 * list_words(geometry.rows)
                },
            )?,
            rows: region.mapped_words(geometry.rows_offset, geometry.rows * geometry.row_stride / 8)?,
            row_count: geometry.rows,
            row_stride: geometry.row_stride as usize / 8,
            row_head: geometry.row_head as usize / 8,
            state_words: shape.state_words as usize,
            holds: region.mapped_words(geometry.holds_offset, shape.holds * geometry.hold_stride / 8)?,
            hold_capacity: shape.holds,
            hold_stride: geometry.hold_stride as usize / 8,
            hold_amounts: shape.held_amounts as usize,
            labels: region.mapped_records(geometry.labels_offset, shape.labels)?,
            tickets: region.mapped_words(
                geometry.tickets_offset,
                shape.tickets * geometry.ticket_stride / 8,
            )?,
            ticket_capacity: shape.tickets,
            ticket_stride: geometry.ticket_stride as usize / 8,
            ticket_limits: shape.limits as usize,
        })
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> &SetControl {
        &self.control
    }

    #[inline]
    pub(crate) fn journal(&self) -> Journal<'_> {
        Journal::new(&self.control().journal, &self.entries, &self.extent)
    }

    /// Changes two words, which is all that the operation changes, even if it had
    /// [begun](crate::shm::lock::journal::LoneChange) to change just one. Takes the values one by one, so that the
    /// caller can keep them in registers. The caller must hold the lock.
    #[cold]
    pub(crate) fn change_both(
        &self,
        words: &[AtomicU64; 2],
        first: u64,
        second: u64,
    ) -> Result<(), JournalOverflow> {
        let mut transaction = self.journal().begin();
        transaction.store(&words[0], first);
        transaction.store(&words[1], second);
        transaction.commit()
    }

    /// The counters of the limit at `index`.
    #[inline]
    pub(crate) fn counters(&self, index: usize) -> &LimitCounters {
        // Every limit has counters.
        self.find_counters(index).unwrap_or(&self.counters[0])
    }

    /// The counters of the limit at `index`; `None` if there are none.
    #[inline(always)]
    pub(crate) fn find_counters(&self, index: usize) -> Option<&LimitCounters> {
        self.counters.get(index)
    }

    /// How many rows of limits there are: one if the set is not keyed.
    pub(crate) fn row_count(&self) -> u64 {
        self.row_count
    }

    #[inline(always)]
    pub(crate) fn is_keyed(&self) -> bool {
        self.row_head > 0
    }

    /// The row of a set without keys; in a keyed set, the row of a key that has none.
    #[inline(always)]
    pub(crate) fn only_row(&self) -> Row<'_> {
        if self.is_keyed() {
            return self.absent_row();
        }
        Row {
            index: 0,
            head: None,
            state: &self.rows,
            overall: &[],
        }
    }

    /// The row of a key that has none. Its own limits read as never used; those that all keys share read as they are.
    #[inline(always)]
    pub(crate) fn absent_row(&self) -> Row<'_> {
        Row {
            overall: &self.overall,
            ..Row::ABSENT
        }
    }

    /// The row at `index`; `None` beyond the table.
    #[inline]
    pub(crate) fn row(&self, index: u64) -> Option<Row<'_>> {
        if index >= self.row_count {
            return None;
        }
        let start = index as usize * self.row_stride;
        let words = self.rows.get(start..start + self.row_head + self.state_words)?;
        if !self.is_keyed() {
            return Some(Row {
                index,
                head: None,
                state: words,
                overall: &[],
            });
        }
        let (head, state) = split_record(words)?;
        Some(Row {
            index,
            head: Some(head),
            state,
            overall: &self.overall,
        })
    }

    /// The row that says how the store of shared limits is doing, for all keys of the shard: in a set without keys,
    /// its only row. [`Row::ABSENT`] in a keyed set without such limits.
    pub(crate) fn lease_row(&self) -> Row<'_> {
        if !self.is_keyed() {
            return self.only_row();
        }
        Row {
            state: self.leases.get(..self.state_words).unwrap_or_default(),
            ..Row::ABSENT
        }
    }

    /// A list of rows for the process that asks the store.
    pub(crate) fn row_list(&self, list: RowList) -> RowBits<'_> {
        let words = list_words(self.row_count) as usize;
        let start = self.state_words + list as usize * words;
        RowBits(self.leases.get(start..start + words).unwrap_or_default())
    }

    /// Words of the states in a row.
    pub(crate) fn state_words(&self) -> usize {
        self.state_words
    }

    /// Words of the states of the limits that all keys share.
    pub(crate) fn overall_words(&self) -> usize {
        self.overall.len()
    }

    /// The order among keys; `None` unless keys share some limit.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.first()
    }

    /// An entry of the heap of the order; `None` beyond it.
    pub(crate) fn order_entry(&self, index: u64) -> Option<&OrderEntry> {
        self.order_entries.get(usize::try_from(index).ok()?)
    }

    /// The part of the order that is kept in the row at `index`; `None` beyond the table, or if there is no order.
    pub(crate) fn row_order(&self, index: u64) -> Option<&RowOrder> {
        if self.order.is_empty() || index >= self.row_count {
            return None;
        }
        let start = index as usize * self.row_stride + self.row_head + self.state_words;
        let words = self.rows.get(start..start + size_of::<RowOrder>() / 8)?;
        split_record(words).map(|(order, _)| order)
    }

    /// The part of the order that is kept in the hold at `index`; `None` beyond the table, or if there is no order.
    pub(crate) fn hold_order(&self, index: u64) -> Option<&HoldOrder> {
        if self.order.is_empty() || index >= self.hold_capacity {
            return None;
        }
        let start = index as usize * self.hold_stride + HOLD_WORDS + self.hold_amounts;
        let words = self.holds.get(start..start + size_of::<HoldOrder>() / 8)?;
        split_record(words).map(|(order, _)| order)
    }

    /// The rows in which the shard's latest operation changed anything, and some in which earlier operations did: at
    /// most 160 journal entries times the 4 rows that share a word of tags, however large the table is.
    pub(crate) fn noted_rows(&self) -> BTreeSet<u64> {
        let geometry = &self.geometry;
        let row_of = |offset: u64, start: u64, row_bytes: u64| {
            let row = offset.checked_sub(start)?.checked_div(row_bytes)?;
            (row < self.row_count).then_some(row)
        };
        let mut rows = BTreeSet::new();
        for index in self.journal().noted() {
            let offset = geometry.extent_offset.saturating_add(index.saturating_mul(8));
            if offset < geometry.rows_offset {
                // The tags of several rows share a word.
                let first = row_of(offset, geometry.tags_offset, 8 / ROWS_OF_TAG_WORD);
                rows.extend(
                    first
                        .into_iter()
                        .flat_map(|first| first..first + ROWS_OF_TAG_WORD),
                );
            } else if offset < geometry.names_offset {
                rows.extend(row_of(offset, geometry.rows_offset, geometry.row_stride));
            }
        }
        rows
    }

    pub(crate) fn all_rows(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.row_count).filter_map(|index| self.row(index))
    }

    /// The word of tags at `index` of the bucket.
    #[inline]
    pub(crate) fn tag_word(&self, bucket: u64, index: u64) -> Option<&AtomicU64> {
        self.tags.get((bucket * BUCKET_TAG_WORDS + index) as usize)
    }

    /// The words of tags of a bucket; `None` beyond the table.
    #[inline]
    pub(crate) fn tags_of(&self, bucket: u64) -> Option<&[AtomicU64; BUCKET_TAG_WORDS as usize]> {
        let start = (bucket * BUCKET_TAG_WORDS) as usize;
        self.tags.get(start..)?.first_chunk()
    }

    /// The name of a row's key, for people to read; empty if none is kept.
    pub(crate) fn name(&self, row: u64) -> &[AtomicU64] {
        let start = row as usize * self.name_words;
        self.names.get(start..start + self.name_words).unwrap_or_default()
    }

    /// How many holds the shard has room for.
    pub(crate) fn hold_capacity(&self) -> u64 {
        self.hold_capacity
    }

    /// The hold at `index`; `None` beyond the table.
    #[inline]
    pub(crate) fn hold(&self, index: u64) -> Option<HoldPlace<'_>> {
        if index >= self.hold_capacity {
            return None;
        }
        let start = index as usize * self.hold_stride;
        let words = self.holds.get(start..start + HOLD_WORDS + self.hold_amounts)?;
        let (head, amounts) = split_record(words)?;
        Some(HoldPlace { head, amounts })
    }

    /// The first amount of a hold, without locating the rest of it.
    #[inline(always)]
    pub(crate) fn first_amount(&self, index: u64) -> Option<&AtomicU64> {
        if index >= self.hold_capacity || self.hold_amounts == 0 {
            return None;
        }
        self.holds.get(index as usize * self.hold_stride + HOLD_WORDS)
    }

    /// How many holds have ever been taken: what lies beyond is zero.
    pub(crate) fn touched_holds(&self) -> u64 {
        self.control()
            .untouched_hold
            .load(Ordering::Relaxed)
            .min(self.hold_capacity)
    }

    /// How many requests may wait.
    pub(crate) fn ticket_capacity(&self) -> u64 {
        self.ticket_capacity
    }

    /// The ticket at `index`; `None` beyond the table.
    pub(crate) fn ticket(&self, index: u64) -> Option<TicketPlace<'_>> {
        if index >= self.ticket_capacity {
            return None;
        }
        let start = index as usize * self.ticket_stride;
        let words = TICKET_WORDS + TICKET_LIMIT_WORDS * self.ticket_limits;
        Some(TicketPlace {
            words: self.tickets.get(start..start + words)?,
        })
    }

    /// The waiter futex of the ticket at `index`, for a caller that may outlive this.
    pub(crate) fn mapped_waiter_futex(
        region: &Arc<Region>,
        geometry: &ShardGeometry,
        index: u64,
    ) -> Result<Mapped<AtomicU64>, OutOfRegion> {
        let offset = index.saturating_mul(geometry.ticket_stride) + offset_of!(Ticket, waiter_futex) as u64;
        region.mapped_words(geometry.tickets_offset.saturating_add(offset), 1)
    }

    /// How many tickets have ever been used: what lies beyond is zero.
    pub(crate) fn touched_tickets(&self) -> u64 {
        self.control()
            .untouched_ticket
            .load(Ordering::Relaxed)
            .min(self.ticket_capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shard_memory::*;
    use crate::shm::layout::geometry::{Geometry, SetShape};
    use crate::shm::lock::journal::LoneChange;

    fn shard(buckets: u64) -> (Arc<Region>, ShardMemory) {
        let shape = SetShape {
            definition_room: 64,
            limits: 1,
            state_words: 2,
            holds: 4,
            held_amounts: 1,
            labels: 0,
            tickets: 4,
            shards: 1,
            buckets,
            name_words: 6,
            lease_lists: 0,
            overall_words: 0,
        };
        let geometry = Geometry::new(1, vec![shape]).expect("a segment");
        let region = Arc::new(Region::private(geometry.total_size).expect("memory"));
        let memory = ShardMemory::locate(&region, &geometry.sets[0].shards[0], 0).expect("within");
        (region, memory)
    }

    #[test]
    fn an_operation_is_followed_to_the_rows_that_it_changed() {
        let (_region, memory) = shard(8);
        let row = |index| memory.row(index).expect("within");
        let mut transaction = memory.journal().begin();
        // The first word of all rows, and the last one.
        transaction.store(&row(0).fingerprint().expect("a keyed row")[0], 1);
        transaction.store(&row(memory.row_count() - 1).state[1], 1);
        transaction.store(row(77).used_at().expect("a keyed row"), 1);
        transaction.store(&row(78).state[1], 1);
        transaction.store(memory.tag_word(5, 2).expect("within"), 1);
        transaction.store(&memory.control().keys, 1);
        transaction.store(memory.hold(1).expect("within").owner(), 1);
        drop(transaction);
        let tagged = 5 * BUCKET_ROWS + 2 * ROWS_OF_TAG_WORD;
        let rows = [0, 77, 78, memory.row_count() - 1];
        assert_eq!(
            memory.noted_rows(),
            rows.into_iter().chain(tagged..tagged + 4).collect()
        );
    }

    #[test]
    fn two_words_that_change_together_take_entries_also_behind_the_beginning_of_one_change() {
        let (_region, memory) = shard(0);
        let row = memory.only_row();
        let words: &[AtomicU64; 2] = row.state.first_chunk().expect("two words");
        let sequence = || memory.journal().sequence_if_idle().expect("idle");
        for values in [[5, 1], [6, 2], [6, 3]] {
            let before = sequence();
            let begun = LoneChange::begin(&memory.control().journal);
            memory.change_both(words, values[0], values[1]).expect("within");
            let _ = begun;
            assert_eq!(words.each_ref().map(|word| word.load(Ordering::Relaxed)), values);
            assert!(sequence() > before);
        }
    }

    #[test]
    fn however_large_the_table_no_more_rows_are_looked_at_than_an_operation_can_change() {
        // Under Miri, filling a table takes minutes.
        let buckets = if cfg!(miri) { 256 } else { 4096 };
        let (_region, memory) = shard(buckets);
        for step in [1, 8, 512, 4097] {
            for (position, entry) in (0..).zip(memory.entries.iter()) {
                let first = (memory.geometry.tags_offset - memory.geometry.extent_offset) / 8;
                entry.index.store(first + position * step, Ordering::Relaxed);
            }
            let rows = memory.noted_rows();
            assert!(!rows.is_empty() && rows.len() <= MAX_NOTED_ROWS, "{}", rows.len());
            assert!(rows.iter().all(|row| *row < memory.row_count()));
        }
        for entry in memory.entries.iter() {
            entry.index.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(memory.noted_rows(), BTreeSet::new());
    }
}
