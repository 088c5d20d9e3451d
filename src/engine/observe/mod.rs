//! Looking without changing anything.

pub(super) mod diagnose_shard;
pub(super) mod image;
pub(super) mod load;
pub(super) mod observe_row;
pub(super) mod observe_shard;
