//! Whose limits a request is put to: a set, and of a keyed set the key.

use super::set_engine::{RuledShard, SetEngine, Shard};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::shm::layout::row::Row;

/// Whose limits a request is put to.
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

    /// The row that is looked at. What has no row is as if it had never been used.
    pub(in crate::engine) fn row_in(self, shard: RuledShard<'_>) -> Row<'_> {
        shard.find_row(self.key).unwrap_or(Row::ABSENT)
    }
}
