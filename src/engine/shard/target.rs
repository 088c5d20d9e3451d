//! Whose limits a request is decided by: those of a set, or of a key in a keyed set.

use super::set_engine::{RuledShard, SetEngine, Shard};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::shm::layout::row::Row;

/// A set, and the key if the set is keyed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) set: &'a SetEngine,
    pub(crate) key: Option<&'a KeyIdentity>,
}

impl<'a> Target<'a> {
    #[inline]
    pub(crate) fn shard(self) -> Shard<'a> {
        self.set.shard_of(self.key)
    }

    /// The row to look at. A key without a row looks as if it had never been used.
    pub(in crate::engine) fn row_in(self, shard: RuledShard<'_>) -> Row<'_> {
        shard.find_row(self.key).unwrap_or_else(|| shard.absent_row())
    }
}
