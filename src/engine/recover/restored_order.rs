//! The order among keys, found anew from who waits: after a death, or where its words contradict each other.

use crate::engine::recover::repairs::Extent;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::queue_words::QueueWords;
use crate::order;
use crate::queue;
use crate::sorting::sort_by;

impl LockedShard<'_> {
    /// Orders every key that waits, by how far it was served and then by how long it has waited. A key that waits for
    /// something of its own leaves the order when its turn comes.
    ///
    /// A death can leave only the places of keys wrong that tickets name, left ones included. Others are wrong only if
    /// something damaged them, and are cleared too if the `extent` is the whole table.
    #[cold]
    pub(in crate::engine) fn rebuild_order(&self, extent: Extent) {
        let memory = self.shard.memory;
        if memory.order().is_none() {
            return;
        }
        let mut order = OrderWords::of(memory);
        let queue = QueueWords::reading(memory);
        let tickets = 0..memory.touched_tickets();
        match extent {
            Extent::Whole => order::clear(&mut order, 0..memory.row_count()),
            Extent::LatestOperation => {
                let of_tickets = tickets.clone().map(|index| queue::Queue::queue_of(&queue, index));
                order::clear(&mut order, of_tickets);
            }
        }
        // Allocates under the lock, but only after a death or damage.
        let heads = tickets.filter_map(|index| Some((self.shard.queue_headed_by(index)?, index)));
        let mut heads: Vec<(u64, u64)> = heads
            .map(|(row, index)| (queue::state(&queue, index).serial, row))
            .collect();
        sort_by(&mut heads, |one, other| one < other);
        for (_, row) in heads {
            // All places are clear, and there is room for each. If a damaged queue has two heads, the earlier one counts.
            let _ = order::restore(&mut order, row, self.shard.weight_of(row));
        }
        order::end_if_empty(&mut order);
    }
}
