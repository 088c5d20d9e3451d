//! The report of a recovery.

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Repairs {
    /// The lock's owner had died.
    pub owner_died: bool,
    /// How many words a half-done operation had changed; they were put back.
    pub undone_words: usize,
    /// A reset that had begun was completed.
    pub finished_reset: bool,
    /// Everything that follows from the holds was counted again.
    pub rebuilt: bool,
    /// The set could not be repaired and is poisoned.
    pub poisoned: bool,
}

impl Repairs {
    /// Adds the repairs of another shard of the same set.
    pub(crate) fn add(&mut self, other: Self) {
        self.owner_died |= other.owner_died;
        self.undone_words += other.undone_words;
        self.finished_reset |= other.finished_reset;
        self.rebuilt |= other.rebuilt;
        self.poisoned |= other.poisoned;
    }
}
