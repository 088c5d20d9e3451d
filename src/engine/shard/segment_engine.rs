//! An attached segment: its sets and its clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::rules::set_rules::SetRules;
use crate::engine::shard::duty_words::DutyWords;
use crate::engine::shard::removal_watch::RemovalWatch;
use crate::engine::shard::set_engine::{SetEngine, Shard};
use crate::engine::terms::plan::SetPlan;
use crate::error::Error;
use crate::limit::Now;
use crate::shm::file::attach::Attached;
use crate::shm::file::creation::checkpoint_file::TakenAt;
use crate::shm::file::region::{MappedRecord, OutOfRegion, Region};
use crate::shm::file::segment_file::damaged;
use crate::shm::file::verified::CreationOptions;
use crate::shm::layout::geometry::SetGeometry;
use crate::shm::layout::records::{DirectoryEntry, Header};
use crate::shm::process::participant::Membership;
use crate::shm::time::clock::utc_nanos;
use crate::shm::time::segment_clock::SegmentClock;

/// Compiles the text of a set's definition, which the engine itself cannot read.
pub(crate) type Compile = fn(&str) -> Option<SetPlan>;

/// An attached segment.
#[derive(Debug)]
pub(crate) struct SegmentEngine {
    path: PathBuf,
    region: Arc<Region>,
    header: MappedRecord<Header>,
    pub(crate) membership: Arc<Membership>,
    creation_options: CreationOptions,
    clock_offset: u64,
    pub(in crate::engine) clock: SegmentClock,
    lock_timeout: Duration,
    pub(in crate::engine) compile: Compile,
    pub(in crate::engine) removal: RemovalWatch,
    sets: Vec<Arc<SetEngine>>,
    /// Says which process asks the store for leases.
    pub(in crate::engine) duty: Option<DutyWords>,
}

/// How an attachment behaves.
#[derive(Debug)]
pub(crate) struct EngineOptions {
    pub(crate) lock_timeout: Duration,
    pub(crate) clock: SegmentClock,
    pub(crate) compile: Compile,
}

/// Places compiled sets on a region. Their shapes must have been compared with the directory.
pub(crate) fn place_sets(
    region: &Arc<Region>,
    geometry: Vec<SetGeometry>,
    plans: Vec<(u64, SetPlan)>,
) -> Result<Vec<SetEngine>, OutOfRegion> {
    let header: &Header = region.record(0)?;
    let seed = [0, 1].map(|half: usize| header.hash_key[half].load(Ordering::Relaxed));
    let directory_offset = header.directory_offset.load(Ordering::Relaxed);
    let entries = (directory_offset..).step_by(size_of::<DirectoryEntry>());
    (0..)
        .zip(plans)
        .zip(geometry)
        .zip(entries)
        .map(|(((position, (generation, plan)), geometry), offset)| {
            let entry = region.mapped_record(offset)?;
            let rules = SetRules::new(generation, plan);
            SetEngine::new(region, position, entry, geometry, rules, seed)
        })
        .collect()
}

impl SegmentEngine {
    /// Places compiled sets on an attached segment. Their shapes must have been compared with its directory.
    pub(crate) fn new(
        path: &Path,
        attached: Attached,
        plans: Vec<(u64, SetPlan)>,
        options: EngineOptions,
    ) -> Result<Self, Error> {
        let Attached {
            verified,
            membership,
            clock_offset,
        } = attached;
        let region = verified.region;
        let outside = |place| damaged(path, place);
        let sets = place_sets(&region, verified.geometry.sets, plans).map_err(outside)?;
        let duty = DutyWords::locate(&region, &sets).map_err(outside)?;
        let mut engine = Self {
            path: path.to_owned(),
            header: region.mapped_record(0).map_err(outside)?,
            region,
            membership,
            creation_options: verified.creation_options,
            clock_offset,
            removal: RemovalWatch::new(&options.clock),
            clock: options.clock,
            lock_timeout: options.lock_timeout,
            compile: options.compile,
            sets: Vec::new(),
            duty,
        };
        engine.sets = sets
            .into_iter()
            .map(|set| {
                let set = engine.definitions().with_previous(set);
                Arc::new(set.with_batches(&engine.membership))
            })
            .collect();
        Ok(engine)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn sets(&self) -> &[Arc<SetEngine>] {
        &self.sets
    }

    /// All shards of all sets.
    pub(crate) fn shards(&self) -> impl Iterator<Item = Shard<'_>> {
        self.sets.iter().flat_map(|set| set.shards())
    }

    pub(crate) fn creation_options(&self) -> CreationOptions {
        self.creation_options
    }

    /// How long calls that return a result wait for a lock.
    pub(crate) fn lock_timeout(&self) -> Duration {
        self.lock_timeout
    }

    /// When, on the boot-time clock, an instant of the segment clock has passed by every reading. The end of time stays
    /// the end of time.
    pub(in crate::engine) fn boot_instant(&self, instant: u64) -> u64 {
        if instant == u64::MAX {
            return instant;
        }
        instant
            .wrapping_sub(self.clock_offset)
            .saturating_add(self.clock.max_lag())
    }

    /// How long to wait, in nanoseconds, until a wait computed from one reading is over by every other one. Zero stays
    /// zero.
    pub(crate) fn wait_by_any_reading(&self, wait: u64) -> u64 {
        if wait == 0 {
            return 0;
        }
        wait.saturating_add(self.clock.max_lag())
    }

    /// Reads the segment clock.
    #[inline]
    pub(in crate::engine) fn segment_nanos(&self) -> u64 {
        self.clock.nanos(self.clock_offset)
    }

    /// Reads the segment clock from the system's clock, whatever it is read from otherwise.
    pub(in crate::engine) fn system_nanos(&self) -> u64 {
        self.clock.system_nanos(self.clock_offset)
    }

    /// The time stamps of a checkpoint that begins now.
    pub(crate) fn taken_at(&self) -> TakenAt {
        TakenAt {
            segment: self.system_nanos(),
            utc: utc_nanos(),
        }
    }

    /// Reads the segment clock, and the wall clock if it is needed.
    #[inline]
    pub(crate) fn read_clocks(&self, reads_utc: bool) -> Now {
        let monotonic = self.segment_nanos();
        let utc = match self.clock {
            _ if !reads_utc => 0,
            // Not read again: it is one clock, and it may have been advanced in between.
            SegmentClock::Virtual(_) => monotonic,
            SegmentClock::System | SegmentClock::Counter(_) => utc_nanos(),
        };
        Now { monotonic, utc }
    }

    #[inline(always)]
    pub(in crate::engine) fn header(&self) -> &Header {
        &self.header
    }
}
