//! How much of a set is in use, seen without its lock: good enough to choose by, not to decide by.

use std::sync::atomic::Ordering;

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::limit::{Mark, Now, RuleOperations};
use crate::shm::layout::row::Row;
use crate::units::{Rounding, divide, saturate};

/// How busy a set is. The smaller of two is the less busy set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    /// How much is taken now of the limit with the smallest share left, in parts of 2^32.
    taken: u64,
    /// Requests that wait in the queue.
    queued: u64,
}

impl SegmentEngine {
    /// How busy a shard is, and the limits of one of its rows. Neither locks nor writes, so a change that is under way
    /// may be seen in part.
    pub(crate) fn load(&self, shard: Shard<'_>, row: Row<'_>) -> Load {
        let now = self.now(shard);
        let shard = shard.by_its_definition();
        Load {
            taken: shard
                .of(row)
                .limits
                .iter()
                .map(|limit| limit.of(row).taken_share(row, now))
                .max()
                .unwrap_or(0),
            queued: shard.memory.control().queued.load(Ordering::Relaxed),
        }
    }
}

impl LimitRules {
    /// How much of the limit is taken now, in parts of 2^32.
    fn taken_share(&self, row: Row<'_>, now: Now) -> u64 {
        // A limit that was never used has a mark of zeros.
        let full = self.rule.standing(Mark::default()).remaining;
        if full == 0 {
            return 0;
        }
        let taken = full.saturating_sub(self.rule.standing(self.mark(row, now)).remaining);
        saturate(divide(u128::from(taken) << 32, full, Rounding::Down))
    }
}
