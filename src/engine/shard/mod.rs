//! Shards: what one lock guards, and the records in it.

pub(super) mod attention;
pub(super) mod hold;
pub(super) mod key_identity;
pub(super) mod key_table;
pub(super) mod limit_state;
pub(super) mod locked_shard;
pub(super) mod segment_engine;
pub(super) mod set_engine;
