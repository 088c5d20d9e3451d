//! A set of a segment, and its shards: each is what one lock guards.
//!
//! **No rule is reached without a lock.** Which definition a shard is on can only be known under its lock: until then,
//! any process may bring another one into force. So a [`Shard`] has no rules, and a [`SetEngine`] has only what all
//! definitions agree on, its [`SetOutline`]. [`SegmentEngine::lock`](crate::engine::SegmentEngine::lock) turns a shard
//! into one with [its rules](RuledShard), and is the only way to one that decides. A caller that only reads, without a
//! lock, gets one [by its definition](Shard::by_its_definition), as far as this process knows it, and changes nothing
//! by it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::rules::set_outline::SetOutline;
use crate::engine::rules::set_rules::SetRules;
use crate::engine::rules::versions::Versions;
use crate::engine::shard::batches::Batches;
use crate::engine::terms::decision::Details;
use crate::engine::terms::definition_bits::DefinitionBits;
use crate::engine::terms::key_identity::KeyIdentity;
use crate::error::{Error, SegmentError};
use crate::limit::{Mark, Now, RuleOperations, Standing};
use crate::shm::file::region::{MappedRecord, OutOfRegion, Region};
use crate::shm::layout::geometry::SetGeometry;
use crate::shm::layout::records::{DirectoryEntry, LimitCounters};
use crate::shm::layout::row_list::RowList;
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::lock::journal::{JournalOverflow, Transaction};
use crate::shm::process::participant::Membership;
use crate::table::{Fingerprint, Mixer};

/// A set of an attached segment, or a copy of one: where it lies, and the definitions that this process knows.
#[derive(Debug)]
pub(crate) struct SetEngine {
    /// Its position in the segment.
    pub(crate) position: u64,
    /// Its entry in the directory.
    pub(in crate::engine) entry: MappedRecord<DirectoryEntry>,
    outline: SetOutline,
    pub(in crate::engine) rules: Versions<SetRules>,
    pub(crate) geometry: SetGeometry,
    shards: Vec<ShardMemory>,
    /// The row of each shard at which the last look at each list of rows stopped, because one exchange with the store
    /// takes a limited number of requests; zero if it reached the end.
    looked_up_to: Vec<[AtomicU64; 2]>,
    /// The seed for hashing keys.
    pub(crate) seed: [u64; 2],
    /// For hashes that all hosts compute alike.
    pub(crate) mixer: Mixer,
    /// Present in an attached segment, if processes draw credit from the set.
    pub(in crate::engine) batches: Option<Arc<Batches>>,
}

/// What one lock guards: a set without keys, or one shard of a keyed set. It has `rules` only once it is known by which
/// definition the shard decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard<'a, Rules = ()> {
    pub(crate) set: &'a SetEngine,
    pub(crate) rules: Rules,
    pub(crate) memory: &'a ShardMemory,
}

/// A shard with the rules it decides by.
pub(crate) type RuledShard<'a> = Shard<'a, &'a SetRules>;

/// A shard at an instant. What is worked out from it depends on nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardAt<'a> {
    pub(crate) shard: RuledShard<'a>,
    pub(crate) now: Now,
}

impl Deref for SetEngine {
    type Target = SetOutline;

    #[inline]
    fn deref(&self) -> &SetOutline {
        &self.outline
    }
}

impl Deref for RuledShard<'_> {
    type Target = SetRules;

    #[inline]
    fn deref(&self) -> &SetRules {
        self.rules
    }
}

impl SetEngine {
    pub(crate) fn new(
        region: &Arc<Region>,
        position: u64,
        entry: MappedRecord<DirectoryEntry>,
        geometry: SetGeometry,
        rules: SetRules,
        seed: [u64; 2],
    ) -> Result<Self, OutOfRegion> {
        let shards: Vec<_> = (0..)
            .zip(&geometry.shards)
            .map(|(index, shard)| ShardMemory::locate(region, shard, index))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            position,
            entry,
            outline: SetOutline::of(&rules.plan),
            rules: Versions::new(rules),
            geometry,
            looked_up_to: shards.iter().map(|_| Default::default()).collect(),
            shards,
            seed,
            mixer: Mixer::of(seed),
            batches: None,
        })
    }

    /// The set, with the batches that this process has drawn or will draw from it.
    pub(in crate::engine) fn with_batches(mut self, membership: &Arc<Membership>) -> Self {
        if self.shown().limits.iter().any(|limit| limit.credit.is_some()) {
            let batches = Batches::of(membership, self.position, self.shards.len(), self.is_keyed());
            self.batches = Some(batches);
        }
        self
    }

    /// The latest definition that this process knows: to be shown, never to decide by.
    pub(crate) fn shown(&self) -> &SetRules {
        self.rules.latest()
    }

    /// The rules of a definition, if this process has read it.
    pub(in crate::engine) fn known_rules(&self, generation: u64) -> Option<&SetRules> {
        self.rules.find(|rules| rules.generation == generation)
    }

    /// How a limit stood under the definition by which the decision was made, and how much it admitted at once.
    pub(crate) fn standing(&self, decision: &Details, limit: usize, mark: Mark) -> Option<(Standing, u64)> {
        let definition = decision.definition;
        let by = |rules: &SetRules| definition.is_of(rules.generation);
        let rules = self.rules.find(by).unwrap_or_else(|| self.shown());
        let own_capacity = decision.own_capacity(limit);
        let limit = rules.of_tier(definition.tier).limits.get(limit)?;
        let limit = limit.by_capacity(own_capacity);
        let found = limit.rule.found_capacity(mark);
        Some((limit.rule.standing(mark), found.unwrap_or(limit.burst)))
    }

    /// Where the last look at a list of rows broke off.
    pub(in crate::engine) fn looked_up_to(&self, shard: u32, list: RowList) -> Option<&AtomicU64> {
        self.looked_up_to.get(shard as usize)?.get(list as usize)
    }

    /// The shard at `index`, or the first one.
    #[inline]
    pub(crate) fn shard(&self, index: u32) -> Shard<'_> {
        // A set has at least one shard. An index beyond them is from another set.
        let memory = self.shards.get(index as usize).unwrap_or(&self.shards[0]);
        Shard {
            set: self,
            rules: (),
            memory,
        }
    }

    /// The shard of a key, or the only one if the set is not keyed.
    #[inline]
    pub(crate) fn shard_of(&self, key: Option<&KeyIdentity>) -> Shard<'_> {
        key.map_or_else(|| self.shard(0), |key| self.shard_of_fingerprint(key.fingerprint))
    }

    #[inline]
    pub(crate) fn shard_of_fingerprint(&self, fingerprint: Fingerprint) -> Shard<'_> {
        self.shard(fingerprint.shard(self.shards.len() as u64) as u32)
    }

    /// All shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = Shard<'_>> {
        (0..self.shards.len() as u32).map(|index| self.shard(index))
    }

    /// Whether processes draw batches from the set.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.batches.is_some()
    }

    /// Whether to tell the background worker that this process has drawn batches. Returns true only once.
    #[inline]
    pub(crate) fn claim_unattended_batches(&self) -> bool {
        self.batches
            .as_ref()
            .is_some_and(|batches| batches.claim_unattended())
    }

    /// Notes that no background worker looks after the batches.
    pub(crate) fn leave_batches_unattended(&self) {
        if let Some(batches) = &self.batches {
            batches.set_unattended();
        }
    }

    #[inline]
    pub(crate) fn is_keyed(&self) -> bool {
        self.geometry.shape.buckets > 0
    }
}

impl<'a> Shard<'a> {
    /// The shard with these rules. If its lock is held, they must be those of the definition that it is on: whoever
    /// locks it makes sure of that.
    #[inline(always)]
    pub(in crate::engine) fn by(self, rules: &'a SetRules) -> RuledShard<'a> {
        Shard {
            set: self.set,
            rules,
            memory: self.memory,
        }
    }

    /// The shard with the rules of the definition that it is on, if this process knows that definition. For a while
    /// after a change, or if the process that made the change has died, that is not the one in force. For callers that
    /// only read.
    pub(crate) fn by_its_definition(self) -> RuledShard<'a> {
        let generation = self.memory.control().generation.load(Ordering::Relaxed);
        let latest = self.set.shown();
        if latest.generation == generation {
            return self.by(latest);
        }
        self.by(self.set.known_rules(generation).unwrap_or(latest))
    }
}

impl<'a> RuledShard<'a> {
    /// The definition it decides by.
    #[inline(always)]
    pub(in crate::engine) fn definition(self) -> DefinitionBits {
        DefinitionBits {
            generation: self.rules.generation as u8,
            tier: self.rules.tier,
        }
    }

    /// The shard at an instant.
    #[inline(always)]
    pub(in crate::engine) fn at(self, now: Now) -> ShardAt<'a> {
        ShardAt { shard: self, now }
    }

    /// The shard without its rules, for a caller that takes its lock again.
    #[inline(always)]
    pub(in crate::engine) fn unruled(self) -> Shard<'a> {
        Shard {
            set: self.set,
            rules: (),
            memory: self.memory,
        }
    }
}

impl<Rules> Shard<'_, Rules> {
    /// The number of the shard in its set.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.memory.index
    }

    /// The counters of the limit at `index`.
    #[inline]
    pub(crate) fn counters(&self, index: usize) -> &LimitCounters {
        self.memory.counters(index)
    }

    #[cold]
    pub(crate) fn poisoned(&self) -> Box<Error> {
        Box::new(Error::Segment(SegmentError::Poisoned {
            set: self.set.name.to_string(),
        }))
    }

    /// Makes the changes of a transaction final.
    #[inline(always)]
    pub(in crate::engine) fn commit(&self, transaction: &mut Transaction<'_>) -> Result<(), Box<Error>> {
        transaction
            .commit()
            .map_err(|overflow| self.internal_error(overflow))
    }

    #[cold]
    pub(in crate::engine) fn internal_error(&self, _: JournalOverflow) -> Box<Error> {
        Box::new(Error::Segment(SegmentError::Internal {
            set: self.set.name.to_string(),
            what: "an operation changed more words than its journal holds",
        }))
    }
}
