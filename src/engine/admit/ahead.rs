//! How long a refused request has to wait for those ahead of it in the queue.

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

/// At most this many of those ahead of a request are counted, because the lock is held meanwhile. The others can only
/// make the wait longer.
const MAX_COUNTED: usize = 16;

impl LockedShard<'_> {
    /// The limit that binds a request behind others in the queue, and the least it has to wait: until the first of them
    /// can be served, and the limits have room for everything that is asked for up to and including the request. `late`
    /// is the request's own ticket, if it is in the queue too.
    pub(in crate::engine) fn binding_behind(
        &self,
        row: Row<'_>,
        costs: &Costs,
        late: Option<u64>,
    ) -> Result<Option<Binding>, Box<Error>> {
        let of_queue = self
            .head(row.index)?
            .and_then(|head| self.binding_in_queue(row, head, costs, late));
        let of_order = self.binding_in_order(costs, late);
        Ok(of_queue.into_iter().chain(of_order).reduce(longer_wait))
    }

    /// The binding of a request that asks for what all keys share, behind the first of those that wait for it.
    fn binding_in_order(&self, costs: &Costs, late: Option<u64>) -> Option<Binding> {
        let first = Some(costs).filter(|costs| self.asks_for_overall(costs));
        let first = first.and_then(|_| self.first_in_order());
        let first = first.filter(|first| late != Some(first.ticket))?;
        let of_first = self.shard.costs_of(self.shard.memory.ticket(first.ticket)?);
        let row = self.shard.absent_row();
        let by_sums = self.shard.rules.overall_limits().filter_map(|limit| {
            let asked = costs.limits.contains(limit.index) && !limit.shadow;
            let cost_of = |costs: &Costs| costs.iter().find(|(index, _)| *index == limit.index);
            let amounts = [costs, &of_first].into_iter().filter_map(cost_of);
            let amount = amounts.fold(0, |sum: u64, (_, cost)| sum.saturating_add(cost));
            let wait = limit.earliest(row, self.now, amount);
            (asked && wait > 0).then_some((limit.index, wait))
        });
        let of_head = self.binding_of_head(self.shard.row(first.row), first.ticket);
        of_head.into_iter().chain(by_sums).reduce(longer_wait)
    }

    fn binding_in_queue(&self, row: Row<'_>, head: u64, costs: &Costs, late: Option<u64>) -> Option<Binding> {
        let shard = self.shard.of(row);
        let sums = self.sums_until(row, head, costs, late);
        let by_sums = sums.iter().filter_map(|(index, amount)| {
            let limit = shard.limits.get(index).filter(|limit| !limit.shadow)?;
            let wait = limit.of(row).earliest(row, self.now, amount);
            (wait > 0).then_some((index, wait))
        });
        let of_head = self.binding_of_head(row, head);
        of_head.into_iter().chain(by_sums).reduce(longer_wait)
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

    /// The sum of what a request and at most [`MAX_COUNTED`] of those ahead of it ask for. Leaves out those who have
    /// given up, whose time is up, or who can never be served: they will leave the queue unserved.
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
