//! Taking places back that are held and not leased any more: other hosts may be given them.

use std::sync::atomic::Ordering;

use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::SetEngine;
use crate::error::Error;

impl SegmentEngine {
    /// Takes back, of each concurrency limit that hosts share, what is held above what is leased, the youngest holds first.
    pub(in crate::engine) fn reclaim_places(&self, set: &SetEngine) -> Result<(), Box<Error>> {
        let seen = set.shard(0).by_its_definition();
        let now = seen.instant(self.now(set.shard(0)));
        let row = seen.memory.only_row();
        if !seen
            .limits
            .iter()
            .any(|limit| limit.places_above_lease(row, now) > 0)
        {
            return Ok(());
        }
        // Found without the lock, and looked at again under it; the youngest first.
        let mut holds: Vec<(u64, u64)> = (0..seen.memory.touched_holds())
            .filter_map(|index| Some((seen.memory.hold(index)?, index)))
            .filter(|(hold, _)| hold.is_taken())
            .map(|(hold, index)| (hold.taken_at().load(Ordering::Relaxed), index))
            .collect();
        holds.sort_unstable_by(|first, second| second.cmp(first));
        let mut locked = self.lock(set.shard(0))?;
        for (_, index) in holds {
            for limit in &locked.shard.limits {
                if limit.places_above_lease(locked.shard.only_row(), locked.now) > 0 {
                    locked.take_place_back(index, limit)?;
                }
            }
        }
        // It stands, whatever is wrong with the queue: the next operation says that.
        let _ = locked.serve_every_queue();
        Ok(())
    }
}

impl LockedShard<'_> {
    /// Takes back what a hold has of a limit; its permit finds that it was reclaimed.
    fn take_place_back(&self, index: u64, limit: &LimitRules) -> Result<(), Box<Error>> {
        if self.finish_if_marked(index)? {
            return Ok(());
        }
        let shard = self.shard;
        let position = shard.held_indexes.iter().position(|held| *held == limit.index);
        let Some(hold) = shard.memory.hold(index).filter(|hold| hold.is_taken()) else {
            return Ok(());
        };
        let Some(word) = position.and_then(|position| hold.amounts().get(position)) else {
            return Ok(());
        };
        let amount = word.load(Ordering::Relaxed);
        if amount == 0 {
            return Ok(());
        }
        let mut transaction = shard.memory.journal().begin();
        limit.give_back(shard.row(hold.row().index), &mut transaction, amount);
        transaction.store(word, 0);
        let expired = hold.expired().load(Ordering::Relaxed) | 1 << limit.index;
        transaction.store(hold.expired(), expired);
        let is_empty = hold
            .amounts()
            .iter()
            .all(|amount| amount.load(Ordering::Relaxed) == 0);
        if is_empty {
            self.free_hold(&mut transaction, index, Ending::Undone);
        }
        transaction.count(&shard.counters(limit.index).reclaimed, amount);
        transaction.count(&shard.memory.control().expired, 1);
        shard.commit(&mut transaction)
    }
}
