//! Capacities that a request or an operator gives a key of its own.

use std::num::NonZeroU64;

use crate::engine::definition::definition_bits::DefinitionBits;
use crate::shm::layout::records::MAX_LIMITS;

/// Some of the limits of a set: bit i is limit i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitMask(pub(crate) u16);

impl LimitMask {
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

    /// The only one, where there is one and no more.
    #[inline(always)]
    pub(in crate::engine) fn only(self) -> Option<usize> {
        (self.0 != 0 && self.0 & self.0.wrapping_sub(1) == 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// Whether there are more than `N`. Many processors count bits by no instruction of their own that all have.
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

/// Capacities that a key is to have of its own of some limits, or none where it is to have what is declared.
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

    /// What is said of a limit, if anything is.
    pub(in crate::engine) fn of_limit(&self, limit: usize) -> Option<Option<NonZeroU64>> {
        let is_named = self.limits.contains(limit % MAX_LIMITS);
        self.capacities.get(limit).copied().filter(|_| is_named)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Option<NonZeroU64>)> + '_ {
        let limits = self.limits.iter();
        limits.map(|limit| (limit, self.capacities[limit % MAX_LIMITS]))
    }

    /// Whether the key is to have any.
    pub(in crate::engine) fn are_any(&self) -> bool {
        self.iter().any(|(_, capacity)| capacity.is_some())
    }
}

/// A capacity that a key cannot have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct RefusedCapacity {
    pub(in crate::engine) limit: usize,
    pub(in crate::engine) capacity: u64,
    /// By which definition.
    pub(in crate::engine) definition: DefinitionBits,
    /// What the key could hold at once, where there are too few holds for that; zero where the limit itself cannot count
    /// with the capacity.
    pub(in crate::engine) concurrency: u64,
}
