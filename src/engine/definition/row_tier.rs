//! Which tier of its set a key is in: by which rules its row decides.
//!
//! The tier is in the word `generation` of the row, of which the lower half alone is the generation. A
//! [change](super::change::row_change) of tier, or of capacities of the key's own, begins a generation, because what was reserved
//! before was reserved by other rules; when it began, and by which rules, is known of the last one, so that what was
//! reserved just before it can be [refunded](crate::engine::settle::refund).

use std::sync::atomic::{AtomicU64, Ordering};

use super::set_rules::SetRules;
use crate::engine::admit::acquire::Target;
use crate::engine::admit::decision::Costs;
use crate::engine::definition::definition_bits::TierIndex;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::RuledShard;
use crate::error::Error;
use crate::shm::layout::row::{Row, RowReference};

/// The upper half of the word `generation` of a key's row.
///
/// | bits | meaning |
/// |---|---|
/// | 32 to 39 | the tier: its position in the definition plus one; zero for `default` |
/// | 40 to 48 | the tier before, plus one, where the row's generation came of a change of tier or of capacities of its own; zero where it did not |
/// | 49 | whether the key was assigned to the tier, so that the row is not given to another key while there is a choice |
/// | 50 | whether all capacities that the key has of its own were named by requests, which name them again: no reason to keep the row |
/// | 51 | whether that change was one of capacities of its own, be it of the tier as well |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowTier {
    pub(crate) tier: TierIndex,
    pub(in crate::engine) former: Option<TierIndex>,
    pub(crate) is_assigned: bool,
    pub(in crate::engine) capacities_by_request: bool,
    pub(in crate::engine) capacities_changed: bool,
}

const TIER_SHIFT: u32 = 32;
const FORMER_SHIFT: u32 = 40;
const FORMER_MASK: u64 = 0x1ff;
const ASSIGNED_BIT: u64 = 1 << 49;
const CAPACITIES_BY_REQUEST_BIT: u64 = 1 << 50;
const CAPACITIES_CHANGED_BIT: u64 = 1 << 51;

impl RowTier {
    #[inline]
    fn from_word(word: u64) -> Self {
        let former = (word >> FORMER_SHIFT) & FORMER_MASK;
        Self {
            tier: TierIndex((word >> TIER_SHIFT) as u8),
            former: former.checked_sub(1).map(|former| TierIndex(former as u8)),
            is_assigned: word & ASSIGNED_BIT != 0,
            capacities_by_request: word & CAPACITIES_BY_REQUEST_BIT != 0,
            capacities_changed: word & CAPACITIES_CHANGED_BIT != 0,
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
            | bit(self.capacities_changed, CAPACITIES_CHANGED_BIT)
    }
}

/// What has become of a row since something was decided on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RowAge {
    Present,
    /// Its key is limited otherwise since, by one change.
    Former {
        tier: TierIndex,
        /// Whether capacities of its own were others as well.
        capacities_changed: bool,
    },
    /// It has been reset, or is another key's, or its key has come to be limited otherwise more than once.
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
            capacities_changed: false,
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
        let RowTier {
            former,
            capacities_changed,
            ..
        } = self.tier();
        match former {
            Some(tier) if previous == reference => RowAge::Former {
                tier,
                capacities_changed,
            },
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::row_tier::*;

    proptest! {
        #[test]
        fn what_is_written_of_a_tier_is_read_back(
            generation: u32, tier: u8, former in proptest::option::of(any::<u8>()), is_assigned: bool,
            capacities_by_request: bool, capacities_changed: bool,
        ) {
            let tier = RowTier {
                tier: TierIndex(tier),
                former: former.map(TierIndex),
                is_assigned,
                capacities_by_request,
                capacities_changed,
            };
            let word = tier.to_word(generation);
            prop_assert_eq!(RowTier::from_word(word), tier);
            prop_assert_eq!(word as u32, generation);
        }
    }
}
