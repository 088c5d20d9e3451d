//! Which tier of its set a key is in: by which rules its row decides, and what becomes of the row when that changes.
//!
//! The tier is in the word `generation` of the row, of which the lower half alone is the generation. A change of tier
//! begins a generation, because what was reserved before was reserved by other rules; when it began, and by which rules,
//! is known of the last one, so that what was reserved just before it can be [refunded](crate::engine::settle::refund).

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use super::overrides::OwnCapacities;
use super::plan::MAX_MIGRATED_WORDS;
use super::set_rules::SetRules;
use crate::engine::admit::acquire::Target;
use crate::engine::admit::decision::Costs;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::locked_shard::{LockWait, LockedShard};
use crate::engine::shard::row_reference::RowReference;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::engine::shard::shard_memory::Row;
use crate::error::Error;
use crate::shm::layout::records::JOURNAL_ENTRIES;

// A change of tier is one transaction, which also writes the word `generation` and when it changed.
const _: () = assert!(MAX_MIGRATED_WORDS + 2 <= JOURNAL_ENTRIES);

/// A tier by its position in the declaration plus one; zero is `default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TierIndex(pub(crate) u8);

/// The upper half of the word `generation` of a key's row.
///
/// | bits | meaning |
/// |---|---|
/// | 32 to 39 | the tier: its position in the definition plus one; zero for `default` |
/// | 40 to 48 | the tier before, plus one, where the row's generation came of a change of tier, or of a capacity of its own; zero where it did not |
/// | 49 | whether the key was assigned to the tier, so that the row is not given to another key while there is a choice |
/// | 50 | whether all capacities that the key has of its own were named by requests, which name them again: no reason to keep the row |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowTier {
    pub(crate) tier: TierIndex,
    pub(in crate::engine) former: Option<TierIndex>,
    pub(crate) is_assigned: bool,
    pub(in crate::engine) capacities_by_request: bool,
}

const TIER_SHIFT: u32 = 32;
const FORMER_SHIFT: u32 = 40;
const FORMER_MASK: u64 = 0x1ff;
const ASSIGNED_BIT: u64 = 1 << 49;
const CAPACITIES_BY_REQUEST_BIT: u64 = 1 << 50;

impl RowTier {
    #[inline]
    fn from_word(word: u64) -> Self {
        let former = (word >> FORMER_SHIFT) & FORMER_MASK;
        Self {
            tier: TierIndex((word >> TIER_SHIFT) as u8),
            former: former.checked_sub(1).map(|former| TierIndex(former as u8)),
            is_assigned: word & ASSIGNED_BIT != 0,
            capacities_by_request: word & CAPACITIES_BY_REQUEST_BIT != 0,
        }
    }

    pub(in crate::engine) fn to_word(self, generation: u32) -> u64 {
        let former = self.former.map_or(0, |former| u64::from(former.0) + 1);
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        u64::from(generation)
            | u64::from(self.tier.0) << TIER_SHIFT
            | former << FORMER_SHIFT
            | bit(self.is_assigned, ASSIGNED_BIT)
            | bit(self.capacities_by_request, CAPACITIES_BY_REQUEST_BIT)
    }
}

/// What has become of a row since something was decided on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RowAge {
    Present,
    /// Its key has changed its tier once, from this one; where it is in this one, a capacity of its own.
    OfFormerTier(TierIndex),
    /// It has been reset, or is another key's, or its key has changed its tier or a capacity more than once.
    Void,
}

impl<'a> Row<'a> {
    #[inline]
    pub(crate) fn tier(self) -> RowTier {
        self.generation().map_or_else(RowTier::default, |word| {
            RowTier::from_word(word.load(Ordering::Relaxed))
        })
    }

    /// What the word `generation` becomes in another generation of the row, in which its key stays in its tier.
    pub(in crate::engine) fn generation_word(self, generation: u32) -> u64 {
        let tier = RowTier {
            former: None,
            ..self.tier()
        };
        tier.to_word(generation)
    }

    pub(in crate::engine) fn age_of(self, reference: RowReference) -> RowAge {
        let present = self.reference();
        if present == reference {
            return RowAge::Present;
        }
        let previous = RowReference {
            generation: present.generation.wrapping_sub(1),
            ..present
        };
        match self.tier().former {
            Some(former) if previous == reference => RowAge::OfFormerTier(former),
            _ => RowAge::Void,
        }
    }
}

impl SetRules {
    /// The rules of a tier; those of `default` where there is no such.
    #[inline]
    pub(crate) fn of_tier(&self, tier: TierIndex) -> &SetRules {
        let position = usize::from(tier.0).checked_sub(1);
        position
            .and_then(|position| self.tiers.get(position))
            .unwrap_or(self)
    }

    /// The rules that a row decides by.
    #[inline(always)]
    pub(crate) fn of_row(&self, row: Row<'_>) -> &SetRules {
        if self.tiers.is_empty() {
            return self;
        }
        self.of_tier(row.tier().tier)
    }

    /// The name of a tier.
    pub(crate) fn tier_name(&self, tier: TierIndex) -> Option<&str> {
        let position = usize::from(tier.0).checked_sub(1)?;
        self.plan.tiers.get(position).map(|tier| tier.name.as_str())
    }

    /// The tier of that name, `default` left out.
    pub(crate) fn find_tier(&self, name: &str) -> Option<TierIndex> {
        let position = self.plan.tiers.iter().position(|tier| tier.name == *name)?;
        // A set has at most 255.
        Some(TierIndex(position as u8 + 1))
    }
}

impl<'a> RuledShard<'a> {
    /// The shard by the rules of a row's tier. A shard that is by those already stays as it is.
    #[inline(always)]
    pub(crate) fn of(self, row: Row<'_>) -> Self {
        if self.rules.tiers.is_empty() {
            return self;
        }
        self.unruled().by(self.rules.of_row(row))
    }

    /// As [`of`](Self::of), for a request that may name a tier: a key that has no row yet would begin in that.
    #[inline(always)]
    pub(crate) fn of_request(self, row: Row<'_>, costs: &Costs) -> Self {
        if self.rules.tiers.is_empty() {
            return self;
        }
        match costs.tier {
            Some(tier) if row.is_absent() => self.unruled().by(self.rules.of_tier(tier)),
            _ => self.of(row),
        }
    }

    /// When the tier of the row's key changed last, or a capacity of its own, on the segment clock.
    pub(in crate::engine) fn changed_at<'r>(&self, row: Row<'r>) -> Option<&'r AtomicU64> {
        row.state(self.set.changed_word?, 1).first()
    }
}

impl SegmentEngine {
    /// The tier that a key is in.
    pub(crate) fn tier_of(&self, target: Target<'_>) -> Result<TierIndex, Box<Error>> {
        let locked = self.lock_to_look(target.shard())?;
        Ok(target.row_in(locked.shard).tier().tier)
    }

    /// Puts a key into a tier, for which its row is made if it has none; answers whether it has one then: the table may
    /// have none left.
    pub(crate) fn assign(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        tier: TierIndex,
    ) -> Result<bool, Box<Error>> {
        if self.try_assign(shard, key, tier)? {
            return Ok(true);
        }
        // Dead processes may keep rows that would do.
        self.reclaim_if_due(shard, LockWait::Timeout)?;
        self.try_assign(shard, key, tier)
    }

    fn try_assign(&self, shard: Shard<'_>, key: &KeyIdentity, tier: TierIndex) -> Result<bool, Box<Error>> {
        let mut locked = self.lock(shard)?;
        let is_assigned = tier != TierIndex::default();
        match locked.shard.find_row_of(key.fingerprint) {
            Some(row) => locked.change_tier(row, tier, is_assigned)?,
            // It is in that tier already.
            None if !is_assigned => {}
            None => match locked.add_row(key, &[])? {
                Ok(row) => {
                    let begun = RowTier {
                        tier,
                        is_assigned,
                        ..RowTier::default()
                    };
                    locked.begin_with(row, begun, None)?;
                }
                Err(_) => return Ok(false),
            },
        }
        Ok(true)
    }
}

impl LockedShard<'_> {
    /// Lets a key begin in a tier and with capacities of its own, of which the row has just been made, and nothing is held
    /// or waited for.
    pub(in crate::engine) fn begin_with(
        &self,
        row: Row<'_>,
        begun: RowTier,
        own: Option<&OwnCapacities>,
    ) -> Result<(), Box<Error>> {
        let own = own.filter(|own| own.are_any());
        let Some(word) = row
            .generation()
            .filter(|_| begun.tier != TierIndex::default() || own.is_some())
        else {
            return Ok(());
        };
        // What is as good as never used to the rules of `default` may be anything to others.
        self.replenish_row(row.index);
        let mut transaction = self.shard.memory.journal().begin();
        transaction.store(word, begun.to_word(row.reference().generation));
        for (index, capacity) in own.into_iter().flat_map(OwnCapacities::iter) {
            let limit = self.shard.limits.get(index);
            if let Some(word) = limit.and_then(|limit| limit.capacity_word(row)) {
                transaction.store(word, capacity.map_or(0, NonZeroU64::get));
            }
        }
        self.shard.commit(transaction)
    }

    /// Puts the key of a row into the tier that a request names.
    #[cold]
    pub(in crate::engine) fn enter_tier(&mut self, row: Row<'_>, tier: TierIndex) -> Result<(), Box<Error>> {
        if row.tier().tier == tier {
            return Ok(());
        }
        self.change_tier(row, tier, false)
    }

    /// Puts the key of a row into a tier, and serves its queue by the rules of that. One transaction, so a process that
    /// dies has changed all of it or nothing.
    fn change_tier(&mut self, row: Row<'_>, tier: TierIndex, is_assigned: bool) -> Result<(), Box<Error>> {
        let (shard, before) = (self.shard, row.tier());
        if before.tier == tier && before.is_assigned == is_assigned {
            return Ok(());
        }
        let Some(word) = row.generation() else {
            return Ok(());
        };
        let generation = row.reference().generation;
        let mut transaction = shard.memory.journal().begin();
        if before.tier == tier {
            let after = RowTier {
                is_assigned,
                ..before
            };
            transaction.store(word, after.to_word(generation));
            return shard.commit(transaction);
        }
        let (old, new) = (shard.rules.of_tier(before.tier), shard.rules.of_tier(tier));
        for (old, new) in old.limits.iter().zip(&new.limits) {
            let (old, new) = (old.of(row), new.of(row));
            if old.rule != new.rule {
                new.migrate(&old, row, &mut transaction, self.now);
            }
        }
        let after = RowTier {
            tier,
            former: Some(before.tier),
            is_assigned,
            ..before
        };
        transaction.store(word, after.to_word(generation.wrapping_add(1)));
        if let Some(changed_at) = shard.changed_at(row) {
            transaction.store(changed_at, self.now.monotonic);
        }
        shard.commit(transaction)?;
        // It stands, whatever is wrong with the queue: the next operation says that.
        let _ = self.serve_next(row.index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::row_tier::*;

    proptest! {
        #[test]
        fn what_is_written_of_a_tier_is_read_back(
            generation: u32, tier: u8, former in proptest::option::of(any::<u8>()), is_assigned: bool,
            capacities_by_request: bool,
        ) {
            let tier = RowTier {
                tier: TierIndex(tier),
                former: former.map(TierIndex),
                is_assigned,
                capacities_by_request,
            };
            let word = tier.to_word(generation);
            prop_assert_eq!(RowTier::from_word(word), tier);
            prop_assert_eq!(word as u32, generation);
        }
    }
}
