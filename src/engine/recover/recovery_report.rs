//! What a recovery says that it did.

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Repairs {
    /// The lock's owner had died.
    pub owner_died: bool,
    /// Words that a half-done operation had changed and that were put back.
    pub undone_words: usize,
    /// A reset that had been begun was carried to its end.
    pub finished_reset: bool,
    /// The counts did not agree with the holds and were counted again.
    pub rebuilt: bool,
    /// The set could not be repaired and is poisoned.
    pub poisoned: bool,
}

impl Repairs {
    /// Of several shards of one set together.
    pub(crate) fn add(&mut self, other: Self) {
        self.owner_died |= other.owner_died;
        self.undone_words += other.undone_words;
        self.finished_reset |= other.finished_reset;
        self.rebuilt |= other.rebuilt;
        self.poisoned |= other.poisoned;
    }
}
