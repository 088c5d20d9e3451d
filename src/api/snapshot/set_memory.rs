//! How much of the file each set takes. All of it is reserved at creation.

use serde::Serialize;

use super::SegmentReader;
use crate::engine::SetEngine;
use crate::shm::layout::records::{ALIGNMENT, HoldLabel};
use crate::units::BUCKET_TAG_WORDS;

/// How much of the file a set takes, which never changes. Bytes include padding for alignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SetMemory {
    /// The set's name, as declared.
    pub set: String,
    /// Shards, each with its own lock; one if the set is not keyed.
    pub shards: u64,
    /// States of limits: one, or one for each key that there is room for.
    pub rows: u64,
    /// Bytes of the rows, and of the index and the stored names.
    pub rows_bytes: u64,
    /// How many [permits can hold something](crate::SetDeclaration::holds) at once.
    pub holds: u64,
    /// Bytes of the holds, and of their [labels](crate::SetDeclaration::labels).
    pub holds_bytes: u64,
    /// How many [requests can wait](crate::SetDeclaration::waiters) at once.
    pub waiters: u64,
    /// Bytes of the queue.
    pub queue_bytes: u64,
    /// Bytes of the rest: locks, journals, counters, and the texts that define the set.
    pub other_bytes: u64,
}

impl SetMemory {
    fn of(set: &SetEngine) -> Self {
        let mut memory = Self {
            set: set.name.clone(),
            shards: set.geometry.shards.len() as u64,
            rows: 0,
            rows_bytes: 0,
            holds: 0,
            holds_bytes: 0,
            waiters: 0,
            queue_bytes: 0,
            other_bytes: 0,
        };
        for shard in &set.geometry.shards {
            let shape = shard.shape;
            let names = if set.is_keyed() { shard.rows } else { 0 };
            memory.rows += shard.rows;
            memory.rows_bytes += shard.rows * shard.row_stride
                + 8 * (names * shape.name_words + shape.buckets * BUCKET_TAG_WORDS);
            memory.holds += shape.holds;
            memory.holds_bytes += shape.holds * shard.hold_stride
                + (shape.labels * size_of::<HoldLabel>() as u64).next_multiple_of(ALIGNMENT);
            memory.waiters += shape.tickets;
            memory.queue_bytes += shape.tickets * shard.ticket_stride;
        }
        let accounted_for = memory.rows_bytes + memory.holds_bytes + memory.queue_bytes;
        memory.other_bytes = set.geometry.extent_size - accounted_for;
        memory
    }

    /// Bytes of the set in all.
    pub fn bytes(&self) -> u64 {
        self.rows_bytes + self.holds_bytes + self.queue_bytes + self.other_bytes
    }
}

impl SegmentReader {
    /// How much of the file each declared set takes, in the order of the declaration. The rest of the
    /// [size](super::SegmentSnapshot::size) is the header, 384 bytes for each process that can be attached, and 192
    /// for each set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::snapshot::SegmentReader;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let api = SetDeclaration::new("api").add_limit(Limit::calls("requests", 100, Duration::from_secs(1)));
    /// Segment::create(&path, &Declaration::new().add_set(api))?;
    /// let memory = SegmentReader::open(&path)?.memory();
    /// assert_eq!((memory[0].waiters, memory[0].queue_bytes), (5_120, 5_120 * 128)); // by default
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> Vec<SetMemory> {
        self.sets.iter().map(|set| SetMemory::of(set)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::set_memory::*;
    use crate::{Declaration, Keyed, Limit, Segment, SetDeclaration};

    #[test]
    fn what_sets_take_and_what_all_share_is_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let minute = Duration::from_secs(60);
        let keyed = SetDeclaration::new("tenants")
            .keyed(Keyed::new(3_000))
            .add_limit(Limit::calls("requests", 100, minute))
            .add_limit(Limit::concurrency("in_flight", 4));
        let alone = SetDeclaration::new("operation")
            .waiters(7)
            .add_limit(Limit::calls("requests", 100, minute));
        let declaration = Declaration::new().participants(10).add_set(keyed).add_set(alone);
        Segment::create(&path, &declaration).expect("created");
        let reader = SegmentReader::open(&path).expect("opened");
        let memory = reader.memory();
        let [tenants, operation] = &memory[..] else {
            panic!("two declared sets: {memory:?}");
        };
        assert!(tenants.rows >= 3_000 && tenants.holds >= 3_000, "{tenants:?}");
        assert_eq!(tenants.waiters, 512 * tenants.shards);
        assert_eq!((operation.shards, operation.rows, operation.holds), (1, 1, 0));
        assert_eq!((operation.waiters, operation.queue_bytes), (7, 7 * 128));
        let of_sets: u64 = memory.iter().map(SetMemory::bytes).sum();
        let shared = crate::shm::layout::records::HEADER_SPACE + 10 * 384 + 2 * 192;
        let size = reader.snapshot().expect("a copy").size;
        assert_eq!(of_sets + shared.next_multiple_of(64), size);
    }
}
