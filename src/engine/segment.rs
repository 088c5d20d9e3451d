//! An attached segment: its sets and its clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::plan::SetPlan;
use super::removal::RemovalWatch;
use super::rules::SetRules;
use super::set::{Part, SetEngine};
use crate::error::Error;
use crate::limit::Now;
use crate::shm::attach::{Attached, damaged};
use crate::shm::clock::{boot_nanos, utc_nanos};
use crate::shm::geometry::SetGeometry;
use crate::shm::layout::{DirectoryEntry, Header};
use crate::shm::participant::Membership;
use crate::shm::region::{Kept, OutOfRegion, Region};
use crate::shm::virtual_clock::VirtualClock;

/// How a set's definition is compiled: what the engine cannot know.
pub(crate) type Compile = fn(&str) -> Option<SetPlan>;

/// An attached segment.
#[derive(Debug)]
pub(crate) struct SegmentEngine {
    path: PathBuf,
    region: Arc<Region>,
    header: Kept<Header>,
    pub(crate) membership: Arc<Membership>,
    clock_offset: u64,
    /// What tells the time instead of the kernel.
    pub(super) virtual_clock: Option<VirtualClock>,
    lock_patience: Duration,
    pub(super) compile: Compile,
    pub(super) removal: RemovalWatch,
    sets: Vec<SetEngine>,
}

/// How an attachment behaves.
#[derive(Debug)]
pub(crate) struct Manner {
    pub(crate) lock_patience: Duration,
    pub(crate) virtual_clock: Option<VirtualClock>,
    pub(crate) compile: Compile,
}

/// Puts compiled sets, whose shapes have been compared with the directory, onto a region.
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
            let entry = region.keep_records(offset, 1)?;
            let rules = SetRules::new(generation, plan);
            SetEngine::new(region, position, entry, geometry, rules, seed)
        })
        .collect()
}

impl SegmentEngine {
    /// Puts the compiled sets onto an attached segment. Their shapes have been compared with its directory.
    pub(crate) fn new(
        path: &Path,
        attached: Attached,
        plans: Vec<(u64, SetPlan)>,
        manner: Manner,
    ) -> Result<Self, Error> {
        let Attached {
            verified,
            membership,
            clock_offset,
        } = attached;
        let region = verified.region;
        let outside = |place| damaged(path, place);
        let sets = place_sets(&region, verified.geometry.sets, plans).map_err(outside)?;
        let mut engine = Self {
            path: path.to_owned(),
            header: region.keep_records(0, 1).map_err(outside)?,
            region,
            membership,
            clock_offset,
            removal: RemovalWatch::new(manner.virtual_clock.as_ref()),
            virtual_clock: manner.virtual_clock,
            lock_patience: manner.lock_patience,
            compile: manner.compile,
            sets: Vec::new(),
        };
        engine.sets = sets
            .into_iter()
            .map(|set| {
                engine
                    .definitions()
                    .with_previous(set)
                    .with_batches(&engine.membership)
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

    pub(crate) fn sets(&self) -> &[SetEngine] {
        &self.sets
    }

    /// All parts of all sets.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.sets.iter().flat_map(SetEngine::parts)
    }

    /// How long calls with a result wait for a lock.
    pub(crate) fn lock_patience(&self) -> Duration {
        self.lock_patience
    }

    /// An instant of the segment clock on the boot-time clock; the end of time stays that.
    pub(super) fn boot_instant(&self, instant: u64) -> u64 {
        if instant == u64::MAX {
            return instant;
        }
        instant.wrapping_sub(self.clock_offset)
    }

    /// The segment clock.
    #[inline]
    pub(super) fn segment_nanos(&self) -> u64 {
        match &self.virtual_clock {
            None => boot_nanos().wrapping_add(self.clock_offset),
            Some(clock) => clock.nanos(),
        }
    }

    /// The segment clock, and the wall clock where it matters.
    #[inline]
    pub(crate) fn read_clocks(&self, reads_utc: bool) -> Now {
        let monotonic = self.segment_nanos();
        let utc = match &self.virtual_clock {
            _ if !reads_utc => 0,
            None => utc_nanos(),
            // Not read again: it may have been advanced, and it is one clock.
            Some(_) => monotonic,
        };
        Now { monotonic, utc }
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &Header {
        &self.header[0]
    }
}
