//! Shards: what one lock guards, the records in it, and the one way to take the lock.

pub(super) mod attention;
pub(super) mod batches;
pub(super) mod duty_words;
pub(super) mod hold;
pub(super) mod key_table;
pub(super) mod listed_keys;
pub(super) mod locked_shard;
pub(super) mod order_words;
pub(super) mod pending_wake;
pub(super) mod queue_words;
pub(super) mod recovery_report;
pub(super) mod removal_watch;
pub(super) mod segment_engine;
pub(super) mod set_engine;
pub(super) mod target;
