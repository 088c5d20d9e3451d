//! Where a new key goes.

/// A row for a new key. Except in the first case it may still hold data of its former key, and after a
/// [`rebuild`](super::rebuild) even in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewRow {
    /// This row was never used.
    Unused(u64),
    /// This row carried nothing about its key.
    Reused(u64),
    /// This row's key is evicted to make room.
    Evicted(u64),
    /// There is no row.
    None {
        /// Nanoseconds, positive, until there will be one if nothing else happens; `None` if waiting alone does not
        /// help.
        room_in: Option<u64>,
    },
}
