//! Sizes and offsets of a segment, computed from the declaration. All arithmetic is checked.

use super::records::{
    ALIGNMENT, DirectoryEntry, HEADER_SPACE, Hold, HoldLabel, HoldOrder, JOURNAL_ENTRIES, JournalEntry,
    KeyRow, LimitCounters, MAX_LIMITS, MAX_PARTICIPANTS, MAX_SETS, Order, OrderEntry, Participant, RowOrder,
    SetControl, Ticket, TicketLimit,
};
use crate::units::{BUCKET_ROWS, BUCKET_TAG_WORDS};

/// The largest segment: a terabyte. The participants' lock bytes begin there.
pub(in crate::shm) const MAX_BYTES: u64 = 1 << 40;

/// The most shards a set may have.
pub(crate) const MAX_SHARDS: u64 = 1024;

/// The most rows a shard may have: their numbers must fit where a permit keeps them.
pub(in crate::shm) const MAX_ROWS: u64 = 1 << 31;

/// The sizes that one set needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetShape {
    /// Bytes reserved for each of the two definition texts.
    pub(crate) definition_room: u64,
    pub(crate) limits: u64,
    /// Words of state in each row, of all limits that every row has of its own.
    pub(crate) state_words: u64,
    /// How many permits of one shard may hold something at the same time.
    pub(crate) holds: u64,
    /// Words for amounts in each hold.
    pub(crate) held_amounts: u64,
    /// Labels of holds in each shard: one per hold, or none.
    pub(crate) labels: u64,
    /// How many requests of one shard may wait at the same time.
    pub(crate) tickets: u64,
    /// Shards with a lock of their own.
    pub(crate) shards: u64,
    /// Buckets of each shard's table of keys; zero if the set is not keyed.
    pub(crate) buckets: u64,
    /// Words per key that hold its name, for people to read.
    pub(crate) name_words: u64,
    /// One if hosts share limits that each key has of its own; otherwise zero.
    pub(crate) lease_lists: u64,
    /// Words of state of all limits that all keys share.
    pub(crate) overall_words: u64,
}

impl SetShape {
    /// How many orders among keys there are: one if all keys share some limit, and otherwise none.
    pub(super) fn orders(&self) -> u64 {
        u64::from(self.overall_words > 0)
    }
}

/// Where one set lies, in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetGeometry {
    pub(crate) shape: SetShape,
    pub(crate) extent_offset: u64,
    pub(crate) extent_size: u64,
    pub(crate) definition_offsets: [u64; 2],
    pub(crate) shards: Vec<ShardGeometry>,
}

/// Where the parts of one shard lie, in bytes from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardGeometry {
    pub(crate) shape: SetShape,
    pub(crate) extent_offset: u64,
    pub(crate) extent_size: u64,
    pub(crate) control_offset: u64,
    pub(crate) journal_offset: u64,
    pub(crate) counters_offset: u64,
    /// The states of the limits that all keys share.
    pub(crate) overall_offset: u64,
    /// The order among keys and the entries of its heap, one for each ticket, if keys share some limit.
    pub(crate) order_offset: u64,
    pub(crate) tags_offset: u64,
    pub(crate) rows_offset: u64,
    /// One, if the set is not keyed.
    pub(crate) rows: u64,
    /// Bytes from one row to the next, and of a row's head.
    pub(crate) row_stride: u64,
    pub(crate) row_head: u64,
    pub(crate) names_offset: u64,
    /// The states of the shard itself, then the two [lists of rows](super::row_list).
    pub(crate) leases_offset: u64,
    pub(crate) holds_offset: u64,
    /// Bytes from one hold to the next.
    pub(crate) hold_stride: u64,
    pub(crate) labels_offset: u64,
    pub(crate) tickets_offset: u64,
    /// Bytes from one ticket to the next.
    pub(crate) ticket_stride: u64,
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) participants: u64,
    pub(crate) participants_offset: u64,
    pub(crate) directory_offset: u64,
    pub(crate) sets: Vec<SetGeometry>,
    pub(crate) total_size: u64,
}

/// The requested sizes do not fit a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

impl SetGeometry {
    /// A set whose extent starts at `extent_offset`.
    pub(crate) fn at(extent_offset: u64, shape: SetShape) -> Result<Self, TooLarge> {
        let max = MAX_LIMITS as u64;
        if shape.limits > max || shape.held_amounts > max || !(1..=MAX_SHARDS).contains(&shape.shards) {
            return Err(TooLarge);
        }
        let mut cursor = Cursor(extent_offset);
        let definition_offsets = [
            cursor.take(shape.definition_room, 1)?,
            cursor.take(shape.definition_room, 1)?,
        ];
        let shards = (0..shape.shards)
            .map(|_| {
                let shard = ShardGeometry::at(cursor.0, shape)?;
                cursor.0 += shard.extent_size;
                Ok(shard)
            })
            .collect::<Result<_, TooLarge>>()?;
        Ok(Self {
            shape,
            extent_offset,
            extent_size: cursor.0 - extent_offset,
            definition_offsets,
            shards,
        })
    }
}

impl ShardGeometry {
    /// The same shard, in a region that contains nothing else.
    pub(crate) fn moved_to_the_start(&self) -> Self {
        let start = self.extent_offset;
        Self {
            extent_offset: 0,
            control_offset: self.control_offset - start,
            journal_offset: self.journal_offset - start,
            counters_offset: self.counters_offset - start,
            overall_offset: self.overall_offset - start,
            order_offset: self.order_offset - start,
            tags_offset: self.tags_offset - start,
            rows_offset: self.rows_offset - start,
            names_offset: self.names_offset - start,
            leases_offset: self.leases_offset - start,
            holds_offset: self.holds_offset - start,
            labels_offset: self.labels_offset - start,
            tickets_offset: self.tickets_offset - start,
            ..*self
        }
    }

    /// The offset of the part of the order among keys that is kept in the row at `index`, and its size in bytes.
    pub(crate) fn row_order(&self, index: u64) -> (u64, u64) {
        let in_row = self.row_head + 8 * self.shape.state_words;
        let size = self.shape.orders() * size_of::<RowOrder>() as u64;
        (self.rows_offset + index * self.row_stride + in_row, size)
    }

    /// A shard whose extent starts at `extent_offset`.
    fn at(extent_offset: u64, shape: SetShape) -> Result<Self, TooLarge> {
        let mut cursor = Cursor(extent_offset);
        let control_offset = cursor.take(1, size_of::<SetControl>() as u64)?;
        let journal_offset = cursor.take(JOURNAL_ENTRIES as u64, size_of::<JournalEntry>() as u64)?;
        let counters_offset = cursor.take(shape.limits, size_of::<LimitCounters>() as u64)?;
        let overall_offset = cursor.take(shape.overall_words, 8)?;
        let orders = shape.orders();
        let order_offset = cursor.take(orders, size_of::<Order>() as u64)?;
        let entries = orders.checked_mul(shape.tickets).ok_or(TooLarge)?;
        cursor.take(entries, size_of::<OrderEntry>() as u64)?;
        let tags_offset = cursor.take(shape.buckets, 8 * BUCKET_TAG_WORDS)?;
        let (rows, row_head) = match shape.buckets {
            0 => (1, 0),
            buckets => (
                buckets.checked_mul(BUCKET_ROWS).ok_or(TooLarge)?,
                size_of::<KeyRow>() as u64,
            ),
        };
        if rows > MAX_ROWS {
            return Err(TooLarge);
        }
        let state_bytes = shape.state_words.checked_mul(8).ok_or(TooLarge)?;
        let of_order = orders * size_of::<RowOrder>() as u64;
        let row_stride = aligned(state_bytes.checked_add(row_head + of_order).ok_or(TooLarge)?)?;
        let rows_offset = cursor.take(rows, row_stride)?;
        let names = if shape.buckets == 0 { 0 } else { rows };
        let names_offset = cursor.take(names, shape.name_words.checked_mul(8).ok_or(TooLarge)?)?;
        let leases_offset = match shape.lease_lists {
            0 => cursor.0,
            _ => cursor.take(1, state_bytes.checked_add(16 * list_words(rows)).ok_or(TooLarge)?)?,
        };
        let of_order = orders * size_of::<HoldOrder>() as u64;
        let hold_stride = aligned(size_of::<Hold>() as u64 + 8 * shape.held_amounts + of_order)?;
        let holds_offset = cursor.take(shape.holds, hold_stride)?;
        let labels_offset = cursor.take(shape.labels, size_of::<HoldLabel>() as u64)?;
        let ticket_stride =
            aligned(size_of::<Ticket>() as u64 + size_of::<TicketLimit>() as u64 * shape.limits)?;
        let tickets_offset = cursor.take(shape.tickets, ticket_stride)?;
        Ok(Self {
            shape,
            extent_offset,
            extent_size: cursor.0 - extent_offset,
            control_offset,
            journal_offset,
            counters_offset,
            overall_offset,
            order_offset,
            tags_offset,
            rows_offset,
            rows,
            row_stride,
            row_head,
            names_offset,
            leases_offset,
            holds_offset,
            hold_stride,
            labels_offset,
            tickets_offset,
            ticket_stride,
        })
    }
}

impl Geometry {
    pub(crate) fn new(
        participants: u64,
        shapes: impl IntoIterator<Item = SetShape>,
    ) -> Result<Self, TooLarge> {
        let shapes: Vec<SetShape> = shapes.into_iter().collect();
        if participants == 0 || participants > MAX_PARTICIPANTS || shapes.len() as u64 > MAX_SETS {
            return Err(TooLarge);
        }
        let mut cursor = Cursor(HEADER_SPACE);
        let participants_offset = cursor.take(participants, size_of::<Participant>() as u64)?;
        let directory_offset = cursor.take(shapes.len() as u64, size_of::<DirectoryEntry>() as u64)?;
        let mut sets = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let set = SetGeometry::at(cursor.0, shape)?;
            cursor.0 += set.extent_size;
            sets.push(set);
        }
        Ok(Self {
            participants,
            participants_offset,
            directory_offset,
            sets,
            total_size: cursor.0,
        })
    }
}

/// Words of a list of rows: a bit for each.
pub(super) fn list_words(rows: u64) -> u64 {
    rows.div_ceil(u64::from(u64::BITS))
}

/// The next free byte, always a multiple of the alignment.
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, count: u64, size: u64) -> Result<u64, TooLarge> {
        let start = self.0;
        let bytes = count.checked_mul(size).ok_or(TooLarge)?;
        self.0 = aligned(start.checked_add(bytes).ok_or(TooLarge)?)?;
        if self.0 > MAX_BYTES {
            Err(TooLarge)
        } else {
            Ok(start)
        }
    }
}

fn aligned(bytes: u64) -> Result<u64, TooLarge> {
    bytes.checked_next_multiple_of(ALIGNMENT).ok_or(TooLarge)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::*;

    proptest! {
        #[test]
        fn shards_never_overlap_and_stay_within_the_file(
            participants in 1..=MAX_PARTICIPANTS,
            shapes in prop::collection::vec(
                ((
                    0..5000_u64, 1..=16_u64, 0..3000_u64, 0..3000_u64, 0..=16_u64, any::<bool>(), 0..3000_u64, 1..5_u64,
                    0..5_u64, 0..7_u64,
                ),
                0..2_u64,
                0..3000_u64),
                0..8,
            ),
        ) {
            let shapes = shapes.into_iter().map(|shape| {
                let (
                    (
                        definition_room, limits, state_words, holds, held_amounts, has_labels, tickets, shards, buckets,
                        name_words,
                    ),
                    lease_lists,
                    overall_words,
                ) = shape;
                let labels = if has_labels { holds } else { 0 };
                SetShape {
                    definition_room, limits, state_words, holds, held_amounts, labels, tickets, shards, buckets, name_words,
                    lease_lists, overall_words,
                }
            });
            let geometry = Geometry::new(participants, shapes).expect("small enough");
            let mut shards = vec![
                (0, HEADER_SPACE),
                (geometry.participants_offset, participants * 384),
                (geometry.directory_offset, geometry.sets.len() as u64 * 192),
            ];
            for set in &geometry.sets {
                shards.extend(set.definition_offsets.map(|offset| (offset, set.shape.definition_room)));
                prop_assert_eq!(set.shards.len() as u64, set.shape.shards);
                for shard in &set.shards {
                    // So that the two words of a row's first limit can be one atomic word.
                    prop_assert_eq!((shard.rows_offset + shard.row_head) % 16, 0);
                    prop_assert_eq!(shard.row_stride % 16, 0);
                    prop_assert!(shard.row_head + shard.shape.state_words * 8 <= shard.row_stride);
                    let names = if shard.shape.buckets == 0 { 0 } else { shard.rows };
                    shards.extend([
                        (shard.control_offset, size_of::<SetControl>() as u64),
                        (shard.journal_offset, (JOURNAL_ENTRIES * 16) as u64),
                        (shard.counters_offset, shard.shape.limits * size_of::<LimitCounters>() as u64),
                        (shard.overall_offset, shard.shape.overall_words * 8),
                        (
                            shard.order_offset,
                            if shard.shape.overall_words > 0 { 64 + 16 * shard.shape.tickets } else { 0 },
                        ),
                        (shard.tags_offset, shard.shape.buckets * 64),
                        (shard.rows_offset, shard.rows * shard.row_stride),
                        (shard.names_offset, names * shard.shape.name_words * 8),
                        (
                            shard.leases_offset,
                            shard.shape.lease_lists * (8 * shard.shape.state_words + 16 * shard.rows.div_ceil(64)),
                        ),
                        (shard.holds_offset, shard.shape.holds * shard.hold_stride),
                        (shard.labels_offset, shard.shape.labels * 72),
                        (shard.tickets_offset, shard.shape.tickets * shard.ticket_stride),
                    ]);
                }
            }
            for pair in shards.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?} runs into {:?}", pair[0], pair[1]);
                prop_assert_eq!(pair[1].0 % ALIGNMENT, 0);
            }
            let (last, size) = shards[shards.len() - 1];
            prop_assert!(last + size <= geometry.total_size);
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let shape = SetShape {
            definition_room: 10,
            limits: 1,
            state_words: 1,
            holds: u64::MAX,
            held_amounts: 1,
            labels: 0,
            tickets: 1,
            shards: 1,
            buckets: 0,
            name_words: 0,
            lease_lists: 0,
            overall_words: 0,
        };
        assert_eq!(Geometry::new(1, [shape]), Err(TooLarge));
        for absurd in [
            SetShape {
                holds: 1,
                shards: 0,
                ..shape
            },
            SetShape {
                holds: 1,
                labels: u64::MAX / 8,
                ..shape
            },
            SetShape {
                holds: 1,
                buckets: u64::MAX,
                ..shape
            },
            SetShape {
                holds: 1,
                state_words: u64::MAX,
                ..shape
            },
            SetShape {
                holds: 1,
                buckets: 1,
                name_words: u64::MAX / 2,
                ..shape
            },
        ] {
            assert_eq!(Geometry::new(1, [absurd]), Err(TooLarge), "{absurd:?}");
        }
        assert_eq!(Geometry::new(0, []), Err(TooLarge));
        assert_eq!(
            Geometry::new(
                1,
                [SetShape {
                    holds: 1 << 35,
                    ..shape
                }]
            ),
            Err(TooLarge)
        );
    }
}
