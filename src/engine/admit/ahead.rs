//! How long the waiters before a refused request in the queue keep it waiting.

use std::sync::atomic::Ordering;

use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::terms::decided::NEVER;
use crate::engine::terms::decision::{Costs, longer_wait};
use crate::engine::terms::resolution::Binding;
use crate::error::Error;
use crate::limit::Assessment;
use crate::queue;
use crate::shm::layout::row::Row;

/// So many of those before a request are counted at most, because the lock is held meanwhile: what more of them ask for
/// only comes later.
const MAX_COUNTED: usize = 16;

impl LockedShard<'_> {
    /// The limit that binds a request behind those who wait, and for how long at least: until the first of them can be
    /// served, and until the limits have room for what those before it and itself ask for. `late` is its own ticket,
    /// where it is one of them.
    pub(in crate::engine) fn binding_behind(
        &self,
        row: Row<'_>,
        costs: &Costs,
        late: Option<u64>,
    ) -> Result<Option<Binding>, Box<Error>> {
        let Some(head) = self.head(row.index)? else {
            return Ok(None);
        };
        let shard = self.shard.of(row);
        let sums = self.sums_until(row, head, costs, late);
        let by_sums = sums.iter().filter_map(|(index, amount)| {
            let limit = shard.limits.get(index).filter(|limit| !limit.shadow)?;
            let wait = limit.of(row).earliest(row, self.now, amount);
            (wait > 0).then_some((index, wait))
        });
        let of_head = self.binding_of_head(row, head);
        Ok(of_head.into_iter().chain(by_sums).reduce(longer_wait))
    }

    /// The limit that binds the first in the queue, and for how long.
    fn binding_of_head(&self, row: Row<'_>, head: u64) -> Option<Binding> {
        let costs = self.shard.costs_of(self.shard.memory.ticket(head)?);
        let shard = self.shard.of(row);
        let waits = costs.iter().filter_map(|(index, cost)| {
            let limit = shard.limits.get(index).filter(|limit| !limit.shadow)?;
            match limit.of(row).verdict(row, self.now, cost) {
                Assessment::Admissible => None,
                Assessment::Refused { retry_after } => Some((index, retry_after.unwrap_or(NEVER))),
            }
        });
        waits.reduce(longer_wait)
    }

    /// What a request and those before it ask for, of which at most [`MAX_COUNTED`] are counted. Those who have given up,
    /// whose time is up, or who can never be served, leave the queue instead.
    fn sums_until(&self, row: Row<'_>, head: u64, costs: &Costs, late: Option<u64>) -> Costs {
        let shard = self.shard.of(row);
        let mut sums = Costs {
            label: None,
            own_capacities: None,
            ..*costs
        };
        let queue = QueueWords::reading(self.shard.memory);
        let mut next = Some(head);
        for _ in 0..MAX_COUNTED {
            let Some(index) = next.filter(|index| Some(*index) != late) else {
                break;
            };
            next = queue::successor(&queue, index);
            let Some(ticket) = self.shard.memory.ticket(index) else {
                break;
            };
            let asked = self.shard.costs_of(ticket);
            let is_given_up = ticket.owner().load(Ordering::Relaxed) == 0;
            let leaves = is_given_up || ticket.is_expired(self.now.monotonic);
            if !leaves && shard.impossible_cost(row, &asked).is_none() {
                sums.add(&asked);
            }
        }
        sums
    }
}
