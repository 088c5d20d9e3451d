//! The order among the keys of a set, if all keys have some limit together.
//!
//! Each key has a queue of its own, and what its own limits refuse blocks no other key. The head of a queue is *ordered* if
//! the limits of its key admit it and it asks for something that all keys share. Of the keys whose heads are ordered, one is
//! [first](crate::order), and only that one may take what all keys share, so that no request starves behind smaller ones.
//! Heads that are not ordered wait for something of their own key: an instant, a release or a change. The ordered ones wait
//! for the first, and only that one computes when time serves it.
//!
//! A key joins the order where its queue is served, and leaves it as soon as none of its requests waits for what all keys
//! share. If its own limits come to refuse its head meanwhile, that is found when its turn comes.
//!
//! Whoever grants the first one, or takes it out of its queue, wakes the next, unless that could be granted too.

use std::sync::atomic::Ordering;

use crate::engine::queue::grant::{Blocked, Served};
use crate::engine::queue::lapse::{LookAfter, MAX_RANK};
use crate::engine::recover::repairs::Extent;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::terms::decision::Costs;
use crate::error::Error;
use crate::limit::Assessment;
use crate::order::{self, Damaged, Place};
use crate::queue;
use crate::shm::layout::places::TicketPlace;
use crate::shm::layout::row::Row;

/// At most this many are granted before the lock is released.
const MAX_GRANTED: usize = 16;

/// An ordered head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct OrderedHead {
    pub(in crate::engine) ticket: u64,
    pub(in crate::engine) row: u64,
}

impl ShardAt<'_> {
    /// Whether the costs ask for something that all keys share.
    pub(in crate::engine) fn asks_for_overall(&self, costs: &Costs) -> bool {
        costs.limits.0 & self.shard.set.overall.0 != 0
    }

    /// Whether something that the key of a row has for itself refuses the costs now, throttling included.
    pub(in crate::engine) fn is_refused_by_key(&self, row: Row<'_>, costs: &Costs) -> bool {
        let rules = self.shard.of(row).rules;
        let refuses = |(index, cost): (usize, u64)| {
            let limit = rules.limits.get(index).filter(|limit| !limit.is_overall());
            limit.is_some_and(|limit| limit.of(row).verdict(row, self.now, cost) != Assessment::Admissible)
        };
        self.throttles_by_row(row, costs) > 0 || costs.iter().any(refuses)
    }

    /// The head of a row's queue, if it is to be ordered. A head that leaves the queue as soon as it is served is ordered
    /// too, or its turn to leave would not come.
    fn head_to_order(&self, row_index: u64) -> Option<u64> {
        let head = queue::head(&QueueWords::reading(self.shard.memory), row_index);
        let index = head.ok().flatten()?;
        let ticket = self.shard.memory.ticket(index)?;
        let (row, costs) = (self.shard.row(row_index), self.shard.costs_of(ticket));
        let leaves = ticket.owner().load(Ordering::Relaxed) == 0 || ticket.is_expired(self.now.monotonic);
        let is_ordered = self.asks_for_overall(&costs) && (leaves || !self.is_refused_by_key(row, &costs));
        is_ordered.then_some(index)
    }
}

impl<'a> LockedShard<'a> {
    fn order(&self) -> OrderWords<'a> {
        OrderWords::of(self.shard.memory)
    }

    /// Whether the key of a row is ordered.
    pub(in crate::engine) fn is_ordered(&self, row: u64) -> bool {
        order::place(&self.order(), row) != Place::Nowhere
    }

    /// Has the key of a row join or leave the order, after something that may have changed what its head waits for.
    pub(in crate::engine) fn order_key(&self, row: u64) {
        if self.shard.set.has_overall() && self.try_order_key(row).is_err() {
            self.rebuild_order(Extent::Whole);
        }
    }

    fn try_order_key(&self, row: u64) -> Result<(), Damaged> {
        let order = &mut self.order();
        let is_ordered = order::sound_place(order, row)? != Place::Nowhere;
        match self.head_to_order(row) {
            Some(_) if !is_ordered => order::join(order, row, self.shard.weight_of(row), self.now.monotonic),
            None if is_ordered => order::leave(order, row),
            _ => Ok(()),
        }
    }

    /// The head that is served next of those that ask for what all keys share.
    pub(in crate::engine) fn first_in_order(&self) -> Option<OrderedHead> {
        if !self.shard.set.has_overall() || self.shard.has_no_waiters_at_all() {
            return None;
        }
        self.find_first().unwrap_or_else(|Damaged| {
            self.rebuild_order(Extent::Whole);
            // This fails only if something damages the order again; then whoever looks next makes it anew.
            self.find_first().ok().flatten()
        })
    }

    fn find_first(&self) -> Result<Option<OrderedHead>, Damaged> {
        let order = &mut self.order();
        let mut has_another_first = false;
        // Every round that goes on takes a key out of the order.
        while let Some(row) = order::first(order)? {
            if let Some(ticket) = self.head_to_order(row) {
                let first = OrderedHead { ticket, row };
                // It went to sleep behind the one that has left.
                if has_another_first {
                    self.notify_head(first);
                }
                return Ok(Some(first));
            }
            has_another_first = true;
            order::leave(order, row)?;
            // It goes by its own limits from now on, and has to compute when time serves it.
            let head = queue::head(&QueueWords::reading(self.shard.memory), row);
            if let Ok(Some(ticket)) = head {
                self.notify_head(OrderedHead { ticket, row });
            }
        }
        Ok(None)
    }

    /// Puts the key of a row back where it belongs in the order, or takes it out, once the request that was first has been
    /// charged and has left the queue.
    pub(in crate::engine) fn replace_in_order(&self, row: u64) {
        let waits = self.head_to_order(row).is_some();
        let weight = self.shard.weight_of(row);
        if order::replace(&mut self.order(), row, weight, waits).is_err() {
            self.rebuild_order(Extent::Whole);
        }
    }

    /// Has a waiting ticket leave its queue without a grant. If it was first in order, it pays as if it had been granted:
    /// otherwise large requests that give up just in time would keep all others waiting.
    pub(in crate::engine) fn leave_in_order<T>(
        &self,
        row: u64,
        costs: &Costs,
        ticket: u64,
        leave: impl FnOnce(&Self) -> Result<T, Box<Error>>,
    ) -> Result<T, Box<Error>> {
        let was_first = self.first_in_order() == Some(OrderedHead { ticket, row });
        if was_first {
            self.charge_in_order(row, costs, None);
        }
        let left = leave(self)?;
        if was_first {
            self.replace_in_order(row);
        } else {
            self.order_key(row);
        }
        Ok(left)
    }

    /// Whether a request of the key of a row has to wait until others are served.
    pub(in crate::engine) fn is_behind_others(&self, row: Row<'_>, costs: &Costs) -> bool {
        !self.shard.has_no_waiters(row) || (self.asks_for_overall(costs) && self.first_in_order().is_some())
    }

    /// Grants what all keys share to those that ask for it, one after the other, as far as the limits admit that.
    /// Returns the first in order afterwards, which is blocked, or was woken to go on.
    #[cold]
    pub(in crate::engine) fn serve_in_order(&mut self) -> Result<Option<OrderedHead>, Box<Error>> {
        let mut has_another_first = false;
        for _ in 0..MAX_GRANTED {
            let Some(first) = self.first_in_order() else {
                return Ok(None);
            };
            let served = self.serve_queue(first.row, Some(first.ticket))?;
            if matches!(served, Served::Blocked(_)) && self.first_in_order() == Some(first) {
                // It went to sleep behind others. As the first, it has to compute when time serves it.
                if has_another_first {
                    self.notify_head(first);
                }
                return Ok(Some(first));
            }
            has_another_first = true;
        }
        let next = self.first_in_order();
        if let Some(next) = next {
            self.notify_head(next);
        }
        Ok(next)
    }

    /// The same, after something that may have changed which keys are ordered.
    pub(in crate::engine) fn serve_all_in_order(&mut self) -> Result<Option<OrderedHead>, Box<Error>> {
        for index in 0..self.shard.memory.touched_tickets() {
            if let Some(row) = self.shard.queue_headed_by(index) {
                self.order_key(row);
            }
        }
        self.serve_in_order()
    }

    /// What the first in order, which was served before, waits for.
    pub(in crate::engine) fn served_as_first(&self, first: OrderedHead) -> Served {
        let ticket = self.shard.memory.ticket(first.ticket);
        ticket.map_or(Served::NoWaiters, |ticket| {
            Served::Blocked(self.blocked_head(first.row, ticket))
        })
    }

    pub(in crate::engine) fn notify_head(&self, head: OrderedHead) {
        if let Some(ticket) = self.shard.memory.ticket(head.ticket) {
            self.notify(head.ticket, ticket);
        }
    }

    /// What an ordered head that is not the first looks after, if it is near enough to the first; `None` if the ticket is
    /// not such a head, and goes by its own limits.
    pub(in crate::engine) fn behind_in_order(&self, index: u64) -> Option<Option<LookAfter>> {
        if !self.shard.set.has_overall() {
            return None;
        }
        let row = self.shard.queue_headed_by(index)?;
        let first = self.first_in_order().filter(|first| first.ticket != index)?;
        if !self.is_ordered(row) {
            return None;
        }
        let rank = order::rank(&self.order(), row, MAX_RANK).max(1);
        let ticket = self.shard.memory.ticket(first.ticket)?;
        let of_first = self.blocked_head(first.row, ticket);
        Some((rank <= MAX_RANK).then_some(LookAfter {
            first: of_first,
            rank,
        }))
    }

    fn blocked_head(&self, row: u64, ticket: TicketPlace<'_>) -> Blocked {
        self.blocked(self.shard.row(row), &self.shard.costs_of(ticket))
    }
}
