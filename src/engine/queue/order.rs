//! The order among the keys of a set, if all keys have some limit together.
//!
//! Each key has a queue of its own, and what its own limits refuse blocks no other key. The head of a queue is *ordered* if
//! the limits of its key admit it and it asks for something that all keys share. Of the ordered heads, the one that came
//! first is served first, and only that one may take what all keys share: so no request starves behind smaller ones.
//! Every other head waits for something of its own key: an instant, a release or a change. The first in order sees to the
//! rest.
//!
//! Whoever grants the first one, or takes it out of its queue, wakes the next, unless that could be granted too.

use std::sync::atomic::Ordering;

use crate::engine::queue::grant::{Blocked, Served};
use crate::engine::queue::lapse::{LookAfter, MAX_RANK};
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::terms::decision::Costs;
use crate::error::Error;
use crate::limit::Assessment;
use crate::queue;
use crate::shm::layout::places::TicketPlace;
use crate::shm::layout::row::Row;

/// At most this many are granted before the lock is released.
const MAX_GRANTED: usize = 16;

/// An ordered head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct OrderedHead {
    /// The number of its ticket, by which heads are ordered.
    serial: u64,
    pub(in crate::engine) ticket: u64,
    pub(in crate::engine) row: u64,
}

impl ShardAt<'_> {
    /// Whether the costs ask for something that all keys share.
    pub(in crate::engine) fn asks_for_overall(&self, costs: &Costs) -> bool {
        costs.limits.0 & self.shard.set.overall.0 != 0
    }

    /// Whether something that the key of a row has for itself refuses the costs now, throttling included.
    fn is_refused_by_key(&self, row: Row<'_>, costs: &Costs) -> bool {
        let rules = self.shard.of(row).rules;
        let refuses = |(index, cost): (usize, u64)| {
            let limit = rules.limits.get(index).filter(|limit| !limit.is_overall());
            limit.is_some_and(|limit| limit.of(row).verdict(row, self.now, cost) != Assessment::Admissible)
        };
        self.throttles_by_row(row, costs) > 0 || costs.iter().any(refuses)
    }

    /// The ticket as an ordered head, if it is one. One that will leave the queue as soon as it is served counts as
    /// ordered, so that it is.
    pub(in crate::engine) fn as_ordered(&self, index: u64) -> Option<OrderedHead> {
        let row_index = self.shard.queue_headed_by(index)?;
        let ticket = self.shard.memory.ticket(index)?;
        let (row, costs) = (self.shard.row(row_index), self.shard.costs_of(ticket));
        let leaves = ticket.owner().load(Ordering::Relaxed) == 0 || ticket.is_expired(self.now.monotonic);
        let is_ordered = self.asks_for_overall(&costs) && (leaves || !self.is_refused_by_key(row, &costs));
        is_ordered.then(|| OrderedHead {
            serial: queue::state(&QueueWords::reading(self.shard.memory), index).serial,
            ticket: index,
            row: row_index,
        })
    }

    /// The heads of queues that may be ordered, each by the number of its ticket.
    fn heads(&self) -> impl Iterator<Item = (u64, u64)> {
        let touched = if self.shard.set.has_overall() && !self.shard.has_no_waiters_at_all() {
            self.shard.memory.touched_tickets()
        } else {
            0
        };
        let queue = QueueWords::reading(self.shard.memory);
        (0..touched).filter_map(move |index| {
            self.shard.queue_headed_by(index)?;
            Some((queue::state(&queue, index).serial, index))
        })
    }

    /// The head that is served next of those that ask for what all keys share.
    pub(in crate::engine) fn first_in_order(&self) -> Option<OrderedHead> {
        self.heads()
            .fold(None, |first: Option<OrderedHead>, (serial, index)| {
                // What a key's own limits say is only asked of heads that would be the first.
                let may_be_first = first.is_none_or(|first| serial < first.serial);
                let head = may_be_first.then(|| self.as_ordered(index)).flatten();
                head.or(first)
            })
    }

    /// Whether a request of the key of a row has to wait until others are served.
    pub(in crate::engine) fn is_behind_others(&self, row: Row<'_>, costs: &Costs) -> bool {
        !self.shard.has_no_waiters(row) || (self.asks_for_overall(costs) && self.first_in_order().is_some())
    }
}

impl<'a> LockedShard<'a> {
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
            if matches!(served, Served::Blocked(_)) && self.as_ordered(first.ticket) == Some(first) {
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
    /// no such head, and goes by its own limits.
    pub(in crate::engine) fn behind_in_order(&self, index: u64) -> Option<Option<LookAfter>> {
        let own = Some(index).filter(|_| self.shard.set.has_overall());
        let own = own.and_then(|index| self.as_ordered(index))?;
        let first = self.first_in_order().filter(|first| *first < own)?;
        let before = self.heads().filter(|(serial, _)| *serial < own.serial);
        let before = before.filter(|(_, index)| self.as_ordered(*index).is_some());
        let rank = before.take(MAX_RANK as usize + 1).count() as u64;
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
