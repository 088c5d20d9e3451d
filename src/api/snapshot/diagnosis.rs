//! A snapshot, together with what it takes to find out what is wrong with the segment's file or with one of its locks.

use std::time::Duration;

use super::{FileReader, LockSnapshot, SegmentReader, SegmentSnapshot};
use crate::choices::{LockKind, ShardPoison};
use crate::engine::{self, Shard};
use crate::error::Error;
use crate::shm::file::set_directory::ensure_trusted;
use crate::shm::process::host::HostIdentity;
use crate::shm::process::same_place::{Likeness, SegmentOrigin, current_place};
use crate::shm::process::shard_locks::LockState;
use crate::shm::time::segment_clock::SegmentClock;

/// Whether a segment can be used, and whether each of its shards makes progress. See [`SegmentReader::diagnose`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// What the segment holds. Each shard is examined as soon as it is copied, so findings and snapshot agree unless the
    /// set is in use.
    pub snapshot: SegmentSnapshot,
    /// What keeps this process from opening the segment, each with a remedy; empty if nothing does. Another user, or
    /// a process of another namespace, may meet other obstacles.
    pub obstacles: Vec<Error>,
    /// Where the segment comes from, and where this process is.
    pub place: SegmentPlace,
    /// Whether processes that open the segment here read the processor's counter instead of the system's clock: see
    /// [`ClockSource`](crate::declare::ClockSource).
    pub reads_counter: bool,
    /// Every shard, set by set.
    pub shards: Vec<ShardDiagnosis>,
}

/// The boot, file and namespaces that a segment belongs to, and those of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentPlace {
    /// Whether it was used since this boot.
    pub same_boot: bool,
    /// Whether the file is the one that was created, and not a copy of it.
    pub same_file: bool,
    /// The inode of the PID namespace of its processes; zero if the kernel does not say. If they may be in several,
    /// that of the process that created the segment.
    pub pid_namespace: u64,
    /// Whether processes of several PID namespaces may use it: see [`LockKind`].
    pub any_pid_namespace: bool,
    /// The inode of this process's PID namespace.
    pub own_pid_namespace: u64,
    /// The inode of the time namespace of its processes; zero if the kernel has none.
    pub time_namespace: u64,
    /// The inode of this process's time namespace.
    pub own_time_namespace: u64,
}

/// What one lock guards: a set, or a shard of a keyed set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardDiagnosis {
    /// The set's name.
    pub set: String,
    /// The number of the shard within the set.
    pub shard: u32,
    /// The lock, according to its word.
    pub lock: LockSnapshot,
    /// Whether the lock can never be taken again in this state. The first process to attach while no other is
    /// attached recreates it.
    pub lock_lost: bool,
    /// A number that advances with each change and each decision, refusals included. If two readings find the same
    /// number, no operation finished in between.
    pub changes: u64,
    /// Whether an operation has begun and not finished: its process is working or died, or a reset or rebuild is in
    /// progress.
    pub half_done: bool,
    /// How long ago the last decision was made. The current holder of the lock has had it for no longer than that.
    pub decided_before: Duration,
    /// Why the shard is out of use, if it is.
    pub poison: Option<ShardPoison>,
    /// Whether its counts agree with its holds, tickets and keys; `None` if it kept changing or an operation is half
    /// done.
    pub adds_up: Option<bool>,
    /// Whether something was given back while another process held the lock, and no process has finished that yet.
    pub unfinished_returns: bool,
    /// The [numbers](super::TicketSnapshot::number) of tickets that are first in their queues and could be granted.
    /// They are granted within a moment, unless the process that should do so is dead.
    pub admissible_heads: Vec<u64>,
}

impl SegmentReader {
    /// Copies everything as [`snapshot`](Self::snapshot) does, and checks whether this process could open the segment, and
    /// whether each shard is sound. Takes no lock and changes nothing. All rows of keyed sets are read.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::snapshot::SegmentReader;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let api = SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 8));
    /// let segment = Segment::create(&path, &Declaration::new().add_set(api))?;
    /// let diagnosis = SegmentReader::open(&path)?.diagnose()?;
    /// assert!(diagnosis.obstacles.is_empty());
    /// assert_eq!(diagnosis.shards[0].adds_up, Some(true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`](crate::OpenError::Io) if the kernel does not say where this process runs.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        let mut first = self.first().diagnose()?;
        let distrust = self.directory().map(|path| ensure_trusted(path, false));
        first.obstacles.extend(distrust.and_then(Result::err));
        let mut snapshots = Vec::new();
        for file in self.files().skip(1) {
            let other = file.diagnose()?;
            snapshots.push(other.snapshot);
            first.obstacles.extend(other.obstacles);
            first.reads_counter &= other.reads_counter;
            first.shards.extend(other.shards);
            first.place = first.place.or(other.place);
        }
        first.snapshot = self.joined(first.snapshot, snapshots);
        Ok(first)
    }

    /// Where the segment comes from, and where this process is. For a [directory](crate::Segment#a-file-for-each-set),
    /// the place is that of the first file that comes from elsewhere, if one does.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`](crate::OpenError::Io) if the kernel does not say where this process runs.
    pub fn place(&self) -> Result<SegmentPlace, Error> {
        let mut place = self.first().place()?;
        for file in self.files().skip(1) {
            place = place.or(file.place()?);
        }
        Ok(place)
    }
}

impl FileReader {
    fn diagnose(&self) -> Result<Diagnosis, Error> {
        let uses_system_clock = self.observed.verified.creation_options.uses_system_clock;
        let reads_counter = !uses_system_clock && matches!(SegmentClock::fastest(), SegmentClock::Counter(_));
        self.look(|source| {
            let mut shards = Vec::new();
            let snapshot = source.take_with(|shard, lock| {
                let seen = engine::diagnose_shard(shard, source.now);
                shards.push(ShardDiagnosis::new(shard, lock, seen));
            })?;
            Ok(Diagnosis {
                snapshot,
                obstacles: self.observed.obstacles(&self.path),
                place: self.place()?,
                reads_counter,
                shards,
            })
        })
    }

    fn place(&self) -> Result<SegmentPlace, Error> {
        Ok(SegmentPlace::new(
            self.observed.origin(&self.path)?,
            current_place(&self.path)?,
            self.declaration.segment().lock() == LockKind::Slot,
        ))
    }
}

impl SegmentPlace {
    fn new(origin: SegmentOrigin, own: HostIdentity, any_pid_namespace: bool) -> Self {
        Self {
            same_boot: origin.boot(own) != Likeness::Another,
            same_file: origin.is_original_file,
            pid_namespace: origin.place.pid_namespace,
            any_pid_namespace,
            own_pid_namespace: own.pid_namespace,
            time_namespace: origin.place.time_namespace,
            own_time_namespace: own.time_namespace,
        }
    }

    /// Prefers the place of a file that is foreign here, because it says more.
    fn or(self, other: Self) -> Self {
        let is_here = self.same_pids() && self.time_namespace == self.own_time_namespace;
        if is_here { other } else { self }
    }

    /// Whether process ids given without a PID namespace are those of this process's namespace.
    pub fn same_pids(&self) -> bool {
        self.same_boot
            && self.same_file
            && (self.any_pid_namespace || self.pid_namespace == self.own_pid_namespace)
    }
}

impl ShardDiagnosis {
    fn new(shard: Shard<'_>, lock: LockState, seen: engine::ShardFindings) -> Self {
        Self {
            set: shard.set.name.to_string(),
            shard: shard.index(),
            lock: LockSnapshot::of(lock),
            lock_lost: lock.is_lost,
            changes: seen.changes,
            half_done: seen.is_half_done,
            decided_before: Duration::from_nanos(seen.decided_before),
            poison: seen.poison,
            adds_up: seen.adds_up,
            unfinished_returns: seen.is_marked,
            admissible_heads: seen.admissible_heads,
        }
    }
}
