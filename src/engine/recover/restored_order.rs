//! The order among keys, rebuilt from who waits: after a death, or if its words contradict each other.

use crate::engine::recover::repairs::Extent;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::queue_words::QueueWords;
use crate::order::{self, Place};
use crate::queue;
use crate::sorting::sort_by;

impl LockedShard<'_> {
    /// Orders every key that waits: newcomers in the order that they had, and all others by how far they were served
    /// and then by how long they have waited. A key that is owed something is still owed it. A key that waits for
    /// something of its own leaves the order when its turn comes.
    ///
    /// After a death, only the places of keys that tickets name can be wrong, tickets that were given up included. Others
    /// are wrong only if something damaged them, and are cleared too if the `extent` is the whole table.
    #[cold]
    pub(in crate::engine) fn rebuild_order(&self, extent: Extent) {
        let memory = self.shard.memory;
        if memory.order().is_none() {
            return;
        }
        let mut order = OrderWords::of(memory);
        let queue = QueueWords::reading(memory);
        let tickets = 0..memory.touched_tickets();
        // Allocates under the lock, but only after a death or damage.
        let heads = tickets.clone().filter_map(|index| {
            let row = self.shard.queue_headed_by(index)?;
            Some((queue::state(&queue, index).serial, row, order::place(&order, row)))
        });
        let mut heads: Vec<(u64, u64, Place)> = heads.collect();
        sort_by(&mut heads, |one, other| (one.0, one.1) < (other.0, other.1));
        let newcomers: Vec<u64> = order::newcomers(&order).collect();
        match extent {
            Extent::Whole => order::clear(&mut order, 0..memory.row_count()),
            Extent::LatestOperation => {
                let of_tickets = tickets.map(|index| queue::Queue::queue_of(&queue, index));
                order::clear(&mut order, of_tickets);
            }
        }
        let has_waiters = |row: &u64| matches!(queue::head(&queue, *row), Ok(Some(_)));
        let newcomers = newcomers.into_iter().filter(has_waiters);
        let newcomers = newcomers.map(|row| (row, Place::Newcomer));
        for (row, before) in newcomers.chain(heads.into_iter().map(|(_, row, before)| (row, before))) {
            // All places are clear, and there is room for each. A key that comes up twice is already where it belongs.
            let _ = order::restore(&mut order, row, self.shard.weight_of(row), before);
        }
        order::end_if_empty(&mut order);
    }
}
