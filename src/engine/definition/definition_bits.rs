//! By which definition something was decided, and in which tier.

/// A tier by its position in the declaration plus one; zero is `default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TierIndex(pub(crate) u8);

/// Which definition a decision was made by, as the lowest bits of its generation, and for a key of which tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefinitionBits {
    pub(in crate::engine) generation: u8,
    pub(crate) tier: TierIndex,
}

impl DefinitionBits {
    /// The definition of that generation, for a key of the tier `default`.
    #[inline(always)]
    pub(in crate::engine) fn of_default(generation: u64) -> Self {
        Self {
            generation: generation as u8,
            tier: TierIndex::default(),
        }
    }

    /// Whether it is the definition of that generation.
    #[inline(always)]
    pub(in crate::engine) fn is_of(self, generation: u64) -> bool {
        self.generation == generation as u8
    }
}
