//! Live changes: which definition a shard is on, and how it is migrated to the next.
//!
//! A new definition is written beside the present one and comes into force with a single store of its generation. Each
//! shard is migrated under its own lock by whoever takes that lock next, limit by limit. Each limit is a transaction
//! that also records how far the migration got: if a process dies on the way, the next one continues there.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::engine::rules::set_rules::SetRules;
use crate::engine::rules::versions::Versions;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::segment_engine::{Compile, SegmentEngine};
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard};
use crate::error::{Error, SegmentError};
use crate::shm::file::region::{Region, load_acquire};
use crate::shm::file::segment_file::damaged;
use crate::shm::layout::definition_text::read_definition;

impl SegmentEngine {
    /// Not zero if a shard decides by another definition than the latest one that this process knows, or has to be
    /// migrated to one.
    #[inline(always)]
    pub(in crate::engine) fn difference_from_definition(&self, shard: RuledShard<'_>) -> u64 {
        let known = shard.rules.generation;
        let own = shard.memory.control().generation.load(Ordering::Relaxed);
        (own ^ known) | (self.generation_of(shard.set) ^ known)
    }
}

/// The rules a locked shard decides by, and those it has to be migrated to first. Usually they are the same.
pub(in crate::engine) struct NeededRules<'a> {
    pub(in crate::engine) own: &'a SetRules,
    pub(in crate::engine) in_force: &'a SetRules,
}

/// Where the definitions of a segment's sets are, and how to compile them, which is done under no lock.
#[derive(Clone, Copy)]
pub(crate) struct Definitions<'a> {
    pub(crate) path: &'a Path,
    pub(crate) region: &'a Region,
    pub(crate) compile: Compile,
}

impl Definitions<'_> {
    /// Makes a set learn the definition that is in force by now, for a caller that only reads. One that cannot be read
    /// is skipped.
    pub(crate) fn keep_up(&self, set: &SetEngine) {
        if load_acquire(&set.entry.generation) != set.rules.latest().generation {
            let _ = self.learn(set);
        }
    }

    /// Makes a set learn the definition in force, and first the one before it, which shards may still be on and callers
    /// may still refer to: an earlier definition cannot be added after a later one.
    pub(in crate::engine) fn learn(&self, set: &SetEngine) -> Result<(), Box<Error>> {
        let add = |rules: SetRules| set.rules.add(rules, |new, old| new.generation > old.generation);
        loop {
            let generation = load_acquire(&set.entry.generation);
            if let Some(earlier) = self.read_previous(set, generation) {
                add(earlier);
            }
            match self.read_rules(set, generation) {
                Ok(rules) => {
                    add(rules);
                    return Ok(());
                }
                // Two more may have come into force in the meantime.
                Err(_) if load_acquire(&set.entry.generation) != generation => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The set, now also knowing the definition before the one in force.
    pub(crate) fn with_previous(&self, mut set: SetEngine) -> SetEngine {
        let present = set.rules.latest();
        let (generation, plan) = (present.generation, present.plan.clone());
        if let Some(earlier) = self.read_previous(&set, generation) {
            set.rules = Versions::new(earlier);
            set.rules.add(SetRules::new(generation, plan), |new, old| {
                new.generation > old.generation
            });
        }
        set
    }

    /// The rules of the definition before `generation`, unless they are known already. If they cannot be read because
    /// another definition is being written in their place, no shard needs them any more, and nothing reserved by them
    /// is refunded.
    fn read_previous(&self, set: &SetEngine, generation: u64) -> Option<SetRules> {
        let before = generation.checked_sub(1)?;
        if set.known_rules(before).is_some() {
            return None;
        }
        self.read_rules(set, before).ok()
    }

    fn read_rules(&self, set: &SetEngine, generation: u64) -> Result<SetRules, Box<Error>> {
        let damaged_definition = || {
            Box::new(Error::Segment(SegmentError::Damaged {
                path: self.path.to_owned(),
                what: format!(
                    "the definition of set `{}` that is in force cannot be read",
                    set.name
                ),
            }))
        };
        let entry = &set.entry;
        let definition = read_definition(self.region, &set.geometry, entry, generation)
            .map_err(|place| damaged(self.path, place))?
            .map_err(|_| damaged_definition())?;
        let plan = (self.compile)(&definition.text).ok_or_else(damaged_definition)?;
        if plan.shape(set.geometry.shape.definition_room) != set.geometry.shape {
            return Err(damaged_definition());
        }
        Ok(SetRules::new(generation, plan))
    }
}

impl SegmentEngine {
    /// The generation of the definition in force for a set.
    #[inline]
    pub(in crate::engine) fn generation_of(&self, set: &SetEngine) -> u64 {
        load_acquire(&set.entry.generation)
    }

    /// The rules a locked shard decides by, and those it has to be migrated to; `None` if this process has not read the
    /// latter yet. It must release the lock before it reads them.
    pub(in crate::engine) fn needed_rules<'a>(
        &self,
        shard: Shard<'a>,
    ) -> Result<Option<NeededRules<'a>>, Box<Error>> {
        let control = shard.memory.control();
        let generation = control.generation.load(Ordering::Relaxed);
        // Read after the shard's generation, and at most one ahead of it: no definition follows another before every
        // shard is on that one.
        let in_force = self.generation_of(shard.set);
        if generation != in_force && in_force.checked_sub(1) != Some(generation) {
            // Damage: nobody knows which of the two definitions the shard was on. It is taken to be the one in force,
            // from which nothing has to be migrated.
            control.migrated.store(0, Ordering::Relaxed);
            control.generation.store(in_force, Ordering::Relaxed);
        }
        let Some(in_force) = shard.set.known_rules(in_force) else {
            return Ok(None);
        };
        let own = self.own_rules(shard)?;
        Ok(Some(NeededRules { own, in_force }))
    }

    /// The rules of the definition that a locked shard is on. A process that knows the definition in force has also
    /// read the one before it, if any shard was still on that.
    pub(in crate::engine) fn own_rules<'a>(&self, shard: Shard<'a>) -> Result<&'a SetRules, Box<Error>> {
        let generation = shard.memory.control().generation.load(Ordering::Relaxed);
        shard.set.known_rules(generation).ok_or_else(|| {
            Box::new(Error::Segment(SegmentError::Damaged {
                path: self.path().to_owned(),
                what: format!(
                    "a shard of set `{}` is still on a definition that no longer exists",
                    shard.set.name
                ),
            }))
        })
    }

    /// Where the definitions of this segment's sets are.
    pub(crate) fn definitions(&self) -> Definitions<'_> {
        Definitions {
            path: self.path(),
            region: self.region(),
            compile: self.compile,
        }
    }
}

impl<'a> LockedShard<'a> {
    /// Migrates the shard to the `rules` of the definition in force, unless it is on that already.
    pub(in crate::engine) fn migrate(&mut self, rules: &'a SetRules) -> Result<(), Box<Error>> {
        let generation = rules.generation;
        if generation == self.shard.rules.generation {
            return Ok(());
        }
        self.read_clock();
        self.end_automatic_batches()?;
        let (shard, now) = (self.shard, self.now);
        let control = shard.memory.control();
        let limits = shard.limits.len() as u64;
        // After the rows, once more for what all keys have together.
        let rows = shard.memory.row_count() + u64::from(shard.set.has_overall());
        let total = rows * limits;
        let mut done = control.migrated.load(Ordering::Relaxed).min(total);
        while done < total {
            let (row, index) = (shard.row(done / limits), (done % limits) as usize);
            done += 1;
            let limits = (shard.rules.of_row(row), rules.of_row(row));
            let (Some(old), Some(new)) = (limits.0.limits.get(index), limits.1.limits.get(index)) else {
                continue;
            };
            let (old, new) = (old.of(row), new.of(row));
            if old.rule == new.rule || row.is_unused() || new.is_overall() != row.is_absent() {
                continue;
            }
            let mut transaction = shard.memory.journal().begin();
            new.migrate(&old, row, &mut transaction, now);
            transaction.store(&control.migrated, done);
            shard.commit(&mut transaction)?;
        }
        let mut transaction = shard.memory.journal().begin();
        transaction.store(&control.generation, generation);
        transaction.store(&control.migrated, 0);
        transaction.store(&control.applied_at, now.monotonic);
        shard.commit(&mut transaction)?;
        self.at.shard = shard.unruled().by(rules);
        // What was used before hosts shared a limit is reported, whether or not its key is used again.
        self.at.shard.list_all_rows();
        Ok(())
    }
}
