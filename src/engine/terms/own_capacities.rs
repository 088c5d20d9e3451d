//! Capacities that a request or an operator gives to a single key.

use std::num::NonZeroU64;

use crate::engine::terms::definition_bits::DefinitionBits;
use crate::shm::layout::records::MAX_LIMITS;

/// Some of the limits of a set: bit i is limit i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitMask(pub(crate) u16);

impl LimitMask {
    pub(in crate::engine) fn of(indexes: impl Iterator<Item = usize>) -> Self {
        Self(indexes.fold(0, |mask, index| mask | 1 << index))
    }

    #[inline(always)]
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(index)
        })
    }

    /// The only limit in the mask, if there is exactly one.
    #[inline(always)]
    pub(in crate::engine) fn only(self) -> Option<usize> {
        (self.0 != 0 && self.0 & self.0.wrapping_sub(1) == 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// Whether there are more than `N`. Not by counting bits: not every processor has an instruction for that.
    #[inline(always)]
    pub(crate) fn is_more_than<const N: usize>(self) -> bool {
        let rest = (0..N).fold(self.0, |rest, _| rest & rest.wrapping_sub(1));
        rest != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    #[inline]
    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

/// The capacities a key is to have of its own, for some of the limits; `None` for a limit that goes back to its
/// declared one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnCapacities {
    limits: LimitMask,
    capacities: [Option<NonZeroU64>; MAX_LIMITS],
}

impl OwnCapacities {
    pub(crate) fn of_one(limit: usize, capacity: Option<NonZeroU64>) -> Self {
        let mut own = Self::default();
        own.set(limit, capacity);
        own
    }

    pub(crate) fn set(&mut self, limit: usize, capacity: Option<NonZeroU64>) {
        if let Some(place) = self.capacities.get_mut(limit) {
            *place = capacity;
            self.limits.insert(limit);
        }
    }

    /// What is given for a limit, if it is named at all.
    pub(in crate::engine) fn of_limit(&self, limit: usize) -> Option<Option<NonZeroU64>> {
        let is_named = self.limits.contains(limit % MAX_LIMITS);
        self.capacities.get(limit).copied().filter(|_| is_named)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Option<NonZeroU64>)> + '_ {
        let limits = self.limits.iter();
        limits.map(|limit| (limit, self.capacities[limit % MAX_LIMITS]))
    }

    /// Whether the key is to have any capacity of its own.
    pub(in crate::engine) fn are_any(&self) -> bool {
        self.iter().any(|(_, capacity)| capacity.is_some())
    }
}

/// A capacity that a key cannot have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct RefusedCapacity {
    pub(in crate::engine) limit: usize,
    pub(in crate::engine) capacity: u64,
    /// The definition that refused it.
    pub(in crate::engine) definition: DefinitionBits,
    /// How much the key could hold at once, if there are too few holds for that; zero if the limit itself cannot count
    /// with the capacity.
    pub(in crate::engine) concurrency: u64,
}
