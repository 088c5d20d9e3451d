//! The definition and the tier that a decision was made by.

/// A tier: its position in the declaration plus one, or zero for `default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TierIndex(pub(crate) u8);

/// The definition a decision was made by, as the lowest bits of its generation, and the key's tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefinitionBits {
    pub(in crate::engine) generation: u8,
    pub(crate) tier: TierIndex,
}

impl DefinitionBits {
    /// The bits of the definition with this generation, for a key in the tier `default`.
    #[inline(always)]
    pub(in crate::engine) fn of_default(generation: u64) -> Self {
        Self {
            generation: generation as u8,
            tier: TierIndex::default(),
        }
    }

    /// Whether this may be the definition of `generation`: only the lowest bits are compared.
    #[inline(always)]
    pub(in crate::engine) fn is_of(self, generation: u64) -> bool {
        self.generation == generation as u8
    }
}
