//! A set of a segment, and its parts: what one lock guards.

use std::ops::Deref;
use std::sync::Arc;

use super::key::KeyIdentity;
use super::memory::PartMemory;
use super::rules::SetRules;
use super::versions::Versions;
use crate::error::Error;
use crate::limit::Now;
use crate::shm::geometry::SetGeometry;
use crate::shm::journal::{JournalOverflow, Transaction};
use crate::shm::layout::{DirectoryEntry, LimitCounters};
use crate::shm::region::{Kept, OutOfRegion, Region};
use crate::table::Fingerprint;

/// A set of an attached segment, or a copy of one: how it decides, and where it lies.
#[derive(Debug)]
pub(crate) struct SetEngine {
    /// In the directory.
    pub(super) entry: Kept<DirectoryEntry>,
    pub(crate) rules: Versions<SetRules>,
    pub(crate) geometry: SetGeometry,
    parts: Vec<PartMemory>,
    /// Of the hash of keys.
    pub(crate) seed: [u64; 2],
}

/// What one lock guards: a set that is not keyed, or one shard of a keyed one. Decides by the rules of the set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) set: &'a SetEngine,
    pub(crate) rules: &'a SetRules,
    pub(crate) memory: &'a PartMemory,
}

/// A part at an instant: what is worked out of it depends on nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartAt<'a> {
    pub(crate) part: Part<'a>,
    pub(crate) now: Now,
}

impl Deref for SetEngine {
    type Target = SetRules;

    /// By the latest definition that this process has heard of.
    #[inline]
    fn deref(&self) -> &SetRules {
        self.rules.latest()
    }
}

impl Deref for Part<'_> {
    type Target = SetRules;

    #[inline]
    fn deref(&self) -> &SetRules {
        self.rules
    }
}

impl SetEngine {
    pub(crate) fn new(
        region: &Arc<Region>,
        entry: Kept<DirectoryEntry>,
        geometry: SetGeometry,
        rules: SetRules,
        seed: [u64; 2],
    ) -> Result<Self, OutOfRegion> {
        let parts = (0..)
            .zip(&geometry.parts)
            .map(|(index, part)| PartMemory::locate(region, part, index))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            entry,
            rules: Versions::new(rules),
            geometry,
            parts,
            seed,
        })
    }

    /// The part at `index`, or the first.
    #[inline]
    pub(crate) fn part(&self, index: u32) -> Part<'_> {
        // A set has at least one part, and an index beyond them is of another set.
        let memory = self.parts.get(index as usize).unwrap_or(&self.parts[0]);
        Part {
            set: self,
            rules: self.rules.latest(),
            memory,
        }
    }

    /// The part that a key belongs to; of a set that is not keyed, the only one.
    #[inline]
    pub(crate) fn part_of(&self, key: Option<&KeyIdentity>) -> Part<'_> {
        key.map_or_else(|| self.part(0), |key| self.part_of_fingerprint(key.fingerprint))
    }

    #[inline]
    pub(crate) fn part_of_fingerprint(&self, fingerprint: Fingerprint) -> Part<'_> {
        self.part(fingerprint.shard(self.parts.len() as u64) as u32)
    }

    /// All parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        (0..self.parts.len() as u32).map(|index| self.part(index))
    }

    #[inline]
    pub(crate) fn is_keyed(&self) -> bool {
        self.geometry.shape.buckets > 0
    }
}

impl Part<'_> {
    /// The number of the part in its set.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.memory.index
    }

    /// What was counted of the limit at `index`.
    #[inline]
    pub(crate) fn counters(&self, index: usize) -> &LimitCounters {
        self.memory.counters(index)
    }

    #[cold]
    pub(crate) fn poisoned(&self) -> Box<Error> {
        Box::new(Error::Poisoned {
            set: self.plan.name.clone(),
        })
    }

    /// Makes the changes of a transaction final.
    #[inline]
    pub(super) fn commit(&self, transaction: Transaction<'_>) -> Result<(), Box<Error>> {
        transaction
            .commit()
            .map_err(|overflow| self.internal_error(overflow))
    }

    #[cold]
    fn internal_error(&self, _: JournalOverflow) -> Box<Error> {
        Box::new(Error::Internal {
            set: self.plan.name.clone(),
            what: "an operation changed more words than its journal holds",
        })
    }
}
