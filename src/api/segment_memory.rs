//! How much memory a segment and each of its sets take. All of it is reserved at creation.

use std::path::Path;

use serde::Serialize;

use super::snapshot::{FileReader, SegmentReader};
use crate::declaration::stored::{StoredDeclaration, StoredSet};
use crate::declaration::{Declaration, SetDeclaration};
use crate::error::{DeclarationError, Error};
use crate::shm::file::set_directory::named_directory;
use crate::shm::layout::geometry::{Geometry, SetGeometry};
use crate::shm::layout::records::{ALIGNMENT, HoldLabel};
use crate::units::BUCKET_TAG_WORDS;

/// How much memory a segment takes: the size of its file, which never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentMemory {
    /// Bytes of the file, or of all files of a directory. What the sets do not take is used by each file's header, 384
    /// bytes for each process that can be attached, and 192 for each set.
    pub bytes: u64,
    /// What each set takes of them, in the order of the declaration.
    pub sets: Vec<SetMemory>,
}

impl SegmentMemory {
    fn of(declaration: &Declaration, geometry: &Geometry) -> Self {
        let sets = declaration.sets().iter().zip(&geometry.sets);
        Self {
            bytes: geometry.total_size,
            sets: sets
                .map(|(set, geometry)| SetMemory::of(set.name(), geometry))
                .collect(),
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.bytes += other.bytes;
        self.sets.extend(other.sets);
        self
    }
}

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
    fn of(name: &str, geometry: &SetGeometry) -> Self {
        let mut memory = Self {
            set: name.to_owned(),
            shards: geometry.shards.len() as u64,
            rows: 0,
            rows_bytes: 0,
            holds: 0,
            holds_bytes: 0,
            waiters: 0,
            queue_bytes: 0,
            other_bytes: 0,
        };
        for shard in &geometry.shards {
            let shape = shard.shape;
            let names = if shape.buckets == 0 { 0 } else { shard.rows };
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
        memory.other_bytes = geometry.extent_size - accounted_for;
        memory
    }

    /// All bytes of the set.
    pub fn bytes(&self) -> u64 {
        self.rows_bytes + self.holds_bytes + self.queue_bytes + self.other_bytes
    }
}

/// A new segment: the text that defines each set, and where everything lies.
pub(in crate::api) struct SegmentPlan {
    pub(super) definitions: Vec<String>,
    pub(super) geometry: Geometry,
}

impl SegmentPlan {
    /// # Errors
    ///
    /// The declaration is invalid, or no segment can be that large.
    pub(super) fn of(declaration: &Declaration) -> Result<Self, DeclarationError> {
        let stored = StoredDeclaration::of(declaration);
        let sets = stored.sets().iter();
        let definitions = sets.map(StoredSet::to_text).collect::<Result<Vec<_>, _>>()?;
        let plans = declaration.compile()?;
        let calendars = declaration.sets().iter().map(SetDeclaration::calendar_windows);
        let shapes = plans
            .iter()
            .zip(&definitions)
            .zip(calendars)
            .map(|((plan, text), calendars)| plan.shape(definition_room(text, calendars)));
        let participants = declaration.segment().participants();
        let geometry =
            Geometry::new(participants.into(), shapes).map_err(|_| DeclarationError::Unsuitable {
                place: "segment".to_owned(),
                reason: "no file can be as large: declare fewer keys, holds, entries or participants"
                    .to_owned(),
            })?;
        Ok(Self {
            definitions,
            geometry,
        })
    }
}

/// The space reserved for each definition of a set whose first one is `text`: later definitions may be longer. A
/// calendar window may be given a time zone, or one whose offset changes more often.
fn definition_room(text: &str, calendars: usize) -> u64 {
    const MIN_SPARE: usize = 512;
    const TIME_ZONE: usize = 2048;
    (text.len() + (text.len() / 2).max(MIN_SPARE) + calendars * TIME_ZONE).next_multiple_of(64) as u64
}

impl Declaration {
    /// How much memory a segment that is created as declared, in one file, takes. Nothing is created. For a path that
    /// may be a directory, see [`memory_at`](Self::memory_at).
    ///
    /// A container's `/dev/shm` has 64 MB unless it is given more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Algorithm, Declaration, Keyed, Limit, SetDeclaration};
    ///
    /// let calls = Limit::calls("requests", 500, Duration::from_secs(60)).algorithm(Algorithm::SlidingWindow);
    /// let tenants = |calls| SetDeclaration::new("tenants").keyed(Keyed::new(10_000)).add_limit(calls);
    /// let memory = |calls| Declaration::new().add_set(tenants(calls)).memory();
    /// assert_eq!(memory(calls.clone())?.bytes >> 20, 29); // 64 entries for each key
    /// assert_eq!(memory(calls.entries(500))?.bytes >> 20, 213);
    /// # Ok::<(), shmlimit::DeclarationError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`validate`](Self::validate), and [`DeclarationError::Unsuitable`] if no file can be that large.
    pub fn memory(&self) -> Result<SegmentMemory, DeclarationError> {
        let plan = SegmentPlan::of(self)?;
        Ok(SegmentMemory::of(self, &plan.geometry))
    }

    /// How much memory a segment that is created as declared at this path takes. Nothing is created. In a
    /// [directory](crate::Segment#a-file-for-each-set), each file has its own header and its own records of processes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, SetDeclaration};
    ///
    /// let set = |name| SetDeclaration::new(name).add_limit(Limit::calls("requests", 500, Duration::from_secs(60)));
    /// let declaration = Declaration::new().add_set(set("api")).add_set(set("mail"));
    /// assert_eq!(declaration.memory_at("/dev/shm/app.limits")?, declaration.memory()?);
    /// assert!(declaration.memory_at("/dev/shm/app.limits.d/")?.bytes > declaration.memory()?.bytes);
    /// # Ok::<(), shmlimit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`memory`](Self::memory), and those of [`Segment::create`](crate::Segment::create) for a path that
    /// no segment can be at, or a declaration that a directory cannot have.
    pub fn memory_at(&self, path: impl AsRef<Path>) -> Result<SegmentMemory, Error> {
        if named_directory(path.as_ref())?.is_none() {
            return Ok(self.memory()?);
        }
        self.validate()?;
        self.check_for_directory()?;
        let mut all = SegmentMemory::default();
        for set in self.sets() {
            all = all.and(self.in_directory(set.name()).memory()?);
        }
        Ok(all)
    }
}

impl FileReader {
    fn memory(&self) -> SegmentMemory {
        SegmentMemory::of(self.declaration(), self.geometry())
    }
}

impl SegmentReader {
    /// How much memory the segment takes; for a [directory](crate::Segment#a-file-for-each-set), all its files.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::snapshot::SegmentReader;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let api = SetDeclaration::new("api").add_limit(Limit::calls("requests", 100, Duration::from_secs(1)));
    /// let declaration = Declaration::new().add_set(api);
    /// Segment::create(&path, &declaration)?;
    /// let memory = SegmentReader::open(&path)?.memory();
    /// assert_eq!((memory.sets[0].waiters, memory.sets[0].queue_bytes), (5_120, 5_120 * 128)); // by default
    /// assert_eq!(memory, declaration.memory()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> SegmentMemory {
        let files = self.files().map(FileReader::memory);
        files.fold(SegmentMemory::default(), SegmentMemory::and)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::segment_memory::*;
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
        let [tenants, operation] = &memory.sets[..] else {
            panic!("two declared sets: {memory:?}");
        };
        assert!(tenants.rows >= 3_000 && tenants.holds >= 3_000, "{tenants:?}");
        assert_eq!(tenants.waiters, 512 * tenants.shards);
        assert_eq!((operation.shards, operation.rows, operation.holds), (1, 1, 0));
        assert_eq!((operation.waiters, operation.queue_bytes), (7, 7 * 128));
        let of_sets: u64 = memory.sets.iter().map(SetMemory::bytes).sum();
        let shared = crate::shm::layout::records::HEADER_SPACE + 10 * 384 + 2 * 192;
        let size = reader.snapshot().expect("a copy").size;
        assert_eq!(of_sets + shared.next_multiple_of(64), size);
        assert_eq!(memory.bytes, size);
        assert_eq!(
            declaration.memory().expect("valid"),
            memory,
            "known before it is made"
        );
    }
}
