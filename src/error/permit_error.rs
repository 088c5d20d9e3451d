//! Why nothing can be given back by a permit.

/// A permit, or a reservation, has nothing to give back or settle any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// The permit was settled before.
    #[error("the permit of set `{set}` was settled already: settle each permit once")]
    AlreadySettled {
        /// The set.
        set: String,
    },
    /// The permit was released before.
    #[error("the permit of set `{set}` was released already: settle before the release")]
    AlreadyReleased {
        /// The set.
        set: String,
    },
    /// The permit was taken by the parent of this process; it stays the parent's.
    #[error(
        "the permit of set `{set}` belongs to the process that forked this one: acquire another in this process"
    )]
    Inherited {
        /// The set.
        set: String,
    },
    /// What the permit held was given back, because its lease had run out or its process was taken for dead.
    #[error(
        "what the permit of set `{set}` held was reclaimed: renew its lease in time, or declare a longer one"
    )]
    Reclaimed {
        /// The set.
        set: String,
    },
}
