//! Why nothing can be given back by a permit.

/// A permit, or a reservation, has nothing to give back or settle any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// The permit was settled before.
    #[error("the permit of set `{set}` was settled already")]
    AlreadySettled {
        /// The set.
        set: String,
    },
    /// The permit was released before.
    #[error("the permit of set `{set}` was released already")]
    AlreadyReleased {
        /// The set.
        set: String,
    },
    /// The permit was taken by the parent of this process; it stays the parent's.
    #[error("the permit of set `{set}` belongs to the process that forked this one")]
    Inherited {
        /// The set.
        set: String,
    },
    /// What was held was given back because a lease had run out, or its process was taken for dead.
    #[error("what the permit of set `{set}` held was reclaimed")]
    Reclaimed {
        /// The set.
        set: String,
    },
}
