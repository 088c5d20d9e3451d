//! Where the tables of a set are, which follow its journal.

use std::ops::Range;

use crate::words::{bucket, counters, hold, label, order, row, ticket};

/// A table of records of the same size, in words.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub start: usize,
    pub stride: usize,
    pub count: usize,
    /// Words of a record, without those of the order among keys, which are not journalled.
    pub size: usize,
}

impl Table {
    pub fn records(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.start + index * self.stride)
    }
}

/// What follows the journal.
pub struct Pieces {
    /// Words of the order among keys: its own, those of its entries, and those in rows. None of them is journalled.
    pub order: Vec<usize>,
    pub tags: usize,
    pub rows: Table,
    pub is_keyed: bool,
    /// The states of the shard itself, which say how the store is doing, and two lists of rows; or nothing.
    pub leases: Range<usize>,
    pub holds: Table,
    pub labels: Table,
    pub tickets: Table,
    pub end: usize,
}

impl Pieces {
    pub fn of(counters: usize, entry: &[usize; 11], [labels, lease_lists, overall]: [usize; 3]) -> Self {
        let [
            ..,
            limits,
            state_words,
            holds,
            held_amounts,
            tickets,
            parts,
            buckets,
            name_words,
        ] = *entry;
        assert_eq!(parts, 1, "the proof works on sets of one shard");
        let is_keyed = buckets > 0;
        let mut end = counters + limits * counters::SIZE;
        let mut table = |count: usize, stride: usize| {
            let start = end;
            end += (count * stride).next_multiple_of(8);
            Table {
                start,
                stride,
                count,
                size: stride,
            }
        };
        // The states of the limits that all keys share.
        table(overall, 1);
        let orders = usize::from(overall > 0);
        let order = table(orders, order::SIZE + order::ENTRY_SIZE * tickets);
        let order = order.start..order.start + order.count * order.stride;
        let aligned = |words: usize| words.next_multiple_of(8);
        let tags = table(buckets, bucket::TAG_WORDS);
        let (row_count, row_head) = if is_keyed {
            (buckets * bucket::ROWS, row::HEAD_SIZE)
        } else {
            (1, 0)
        };
        let of_order = row_head + state_words..row_head + state_words + orders * order::ROW_SIZE;
        let rows = table(row_count, aligned(of_order.end));
        let of_rows = rows
            .records()
            .flat_map(|row| of_order.clone().map(move |word| row + word));
        let order = order.chain(of_rows).collect();
        table(if is_keyed { row_count } else { 0 }, name_words);
        let leases = table(lease_lists, state_words + 2 * row_count.div_ceil(64));
        let leases = leases.start..leases.start + leases.count * leases.stride;
        let size = hold::HEAD_SIZE + held_amounts;
        let holds = Table {
            size,
            ..table(holds, aligned(size + orders * order::HOLD_SIZE))
        };
        let labels = table(labels, label::SIZE);
        let tickets = table(tickets, aligned(ticket::HEAD_SIZE + limits * ticket::LIMIT_SIZE));
        Self {
            order,
            tags: tags.start,
            rows,
            is_keyed,
            leases,
            holds,
            labels,
            tickets,
            end,
        }
    }
}
