//! Which tier of its set a key is in, and so which rules decide for its row.
//!
//! The tier is the upper half of the row's word `generation`; only the lower half is the generation. A
//! [change](crate::engine::change::row_change) of tier, or of the key's own capacities, starts a new generation, because what
//! was reserved before was reserved by other rules: none of it is [refunded](crate::engine::settle::refund).

use std::sync::atomic::Ordering;

use crate::engine::rules::set_rules::SetRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::RuledShard;
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::Costs;
use crate::engine::terms::definition_bits::TierIndex;
use crate::error::Error;
use crate::shm::layout::row::Row;

/// The upper half of the word `generation` of a key's row.
///
/// | bits | meaning |
/// |---|---|
/// | 32 to 39 | the tier: its position in the definition plus one; zero for `default` |
/// | 40 | whether the key was assigned to the tier, so that the row is not given to another key while there is a choice |
/// | 41 | whether all capacities that the key has of its own were named by requests, which name them again: no reason to keep the row |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowTier {
    pub(crate) tier: TierIndex,
    pub(crate) is_assigned: bool,
    pub(in crate::engine) capacities_by_request: bool,
}

const TIER_SHIFT: u32 = 32;
const ASSIGNED_BIT: u64 = 1 << 40;
const CAPACITIES_BY_REQUEST_BIT: u64 = 1 << 41;

impl RowTier {
    #[inline]
    fn from_word(word: u64) -> Self {
        Self {
            tier: TierIndex((word >> TIER_SHIFT) as u8),
            is_assigned: word & ASSIGNED_BIT != 0,
            capacities_by_request: word & CAPACITIES_BY_REQUEST_BIT != 0,
        }
    }

    pub(in crate::engine) fn to_word(self, generation: u32) -> u64 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        u64::from(generation)
            | u64::from(self.tier.0) << TIER_SHIFT
            | bit(self.is_assigned, ASSIGNED_BIT)
            | bit(self.capacities_by_request, CAPACITIES_BY_REQUEST_BIT)
    }
}

impl Row<'_> {
    #[inline]
    pub(crate) fn tier(self) -> RowTier {
        self.generation().map_or_else(RowTier::default, |word| {
            RowTier::from_word(word.load(Ordering::Relaxed))
        })
    }

    /// The value of the word `generation` in another generation of the row, with the key in the same tier.
    pub(in crate::engine) fn generation_word(self, generation: u32) -> u64 {
        self.tier().to_word(generation)
    }
}

impl SetRules {
    /// The rules of a tier, or those of `default` if there is no such tier.
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

    /// The tier with this name. `default` is not searched for.
    pub(crate) fn find_tier(&self, name: &str) -> Option<TierIndex> {
        let position = self.plan.tiers.iter().position(|tier| tier.name == *name)?;
        // A set has at most 255 tiers.
        Some(TierIndex(position as u8 + 1))
    }
}

impl<'a> RuledShard<'a> {
    /// The shard with the rules of a row's tier. A shard that already has a tier's rules stays as it is.
    #[inline(always)]
    pub(crate) fn of(self, row: Row<'_>) -> Self {
        if self.rules.tiers.is_empty() {
            return self;
        }
        self.unruled().by(self.rules.of_row(row))
    }

    /// The shard with the rules for a request, which may name a tier: a key without a row would start in that tier.
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
}

impl SegmentEngine {
    /// The tier a key is in.
    pub(crate) fn tier_of(&self, target: Target<'_>) -> Result<TierIndex, Box<Error>> {
        let locked = self.lock(target.shard(), LockFor::Look, LockWait::Timeout)?;
        Ok(target.row_in(locked.shard).tier().tier)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::row_tier::*;

    proptest! {
        #[test]
        fn what_is_written_of_a_tier_is_read_back(
            generation: u32, tier: u8, is_assigned: bool, capacities_by_request: bool,
        ) {
            let tier = RowTier {
                tier: TierIndex(tier),
                is_assigned,
                capacities_by_request,
            };
            let word = tier.to_word(generation);
            prop_assert_eq!(RowTier::from_word(word), tier);
            prop_assert_eq!(word as u32, generation);
        }
    }
}
