//! Where a new key goes.

/// A row for a new key. In all cases but the first it may still hold what belonged to its former key, and even in that
/// one after a [`rebuild`](super::rebuild).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No process used this row.
    Unused(u64),
    /// What this row said of its key was nothing.
    Reused(u64),
    /// This row's key is forgotten for it.
    Evicted(u64),
    /// There is none.
    None {
        /// Nanoseconds, positive, until there will be one, if nothing else happens; `None` where time alone does not help.
        room_in: Option<u64>,
    },
}
