//! The order among the keys of a set with overall limits.
//!
//! Each key has a queue of its own, and what its own limits refuse blocks no other key. The head of a queue is
//! *ordered* if the limits of its key admit it and it asks for something that all keys share. Of the keys whose heads
//! are ordered, one is [first](crate::order), and only that one may take what all keys share, so that no request
//! starves behind smaller ones. Heads that are not ordered wait for something of their own key: an instant, a release
//! or a change. The ordered ones wait for the first, and only that one works out when time alone will serve it.
//!
//! A key joins the order where its queue is served, and leaves it as soon as none of its requests waits for what all
//! keys share. If its own limits have come to refuse its head meanwhile, that is noticed when its turn comes.
//!
//! Whoever grants the first head, or takes it out of its queue, wakes the next one, unless it can grant that one too.
//! If the next one waits only for what others hold, it is left asleep: whoever releases that serves it.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// The first in order, after it was served but could not be granted.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct ServedFirst {
    pub(in crate::engine) head: OrderedHead,
    /// What it waits for, if that was worked out.
    blocked: Option<Blocked>,
    /// Whether it was woken, because another was first before.
    was_woken: bool,
}

impl ServedFirst {
    fn found(head: OrderedHead) -> Self {
        Self {
            head,
            blocked: None,
            was_woken: false,
        }
    }
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

    /// The head of a row's queue, if it is to be ordered. A head that leaves the queue as soon as it is served is
    /// ordered too, or its turn to leave would never come.
    fn head_to_order(&self, row_index: u64) -> Option<u64> {
        let head = queue::head(&QueueWords::reading(self.shard.memory), row_index);
        let index = head.ok().flatten()?;
        let ticket = self.shard.memory.ticket(index)?;
        let (asked, overall) = (ticket.limits().0, self.shard.set.overall.0);
        if asked & overall == 0 {
            return None;
        }
        let row = self.shard.row(row_index);
        // Most keys have nothing that could refuse it.
        let may_be_refused = asked & !overall != 0 || self.shard.row_throttled_for(row, self.now) > 0;
        let is_ordered = !may_be_refused
            || self.leaves(ticket)
            || !self.is_refused_by_key(row, &self.shard.costs_of(ticket));
        is_ordered.then_some(index)
    }

    /// Whether a ticket leaves its queue without a grant as soon as it is served.
    fn leaves(&self, ticket: TicketPlace<'_>) -> bool {
        ticket.owner().load(Ordering::Relaxed) == 0 || ticket.is_expired(self.now.monotonic)
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

    /// Makes the key of a row join or leave the order, when what its head waits for may have changed.
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

    /// Of the heads that ask for what all keys share, the one that is served next.
    pub(in crate::engine) fn first_in_order(&self) -> Option<OrderedHead> {
        if !self.shard.set.has_overall() || self.shard.has_no_waiters_at_all() {
            return None;
        }
        self.find_first().unwrap_or_else(|Damaged| {
            self.rebuild_order(Extent::Whole);
            // This fails only if something damages the order again; then whoever looks next rebuilds it.
            self.find_first().ok().flatten()
        })
    }

    fn find_first(&self) -> Result<Option<OrderedHead>, Damaged> {
        let order = &mut self.order();
        let mut has_another_first = false;
        // Every round but the last takes a key out of the order.
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
            // From now on it waits for its own limits, and has to work out when time alone will serve it.
            let head = queue::head(&QueueWords::reading(self.shard.memory), row);
            if let Ok(Some(ticket)) = head {
                self.notify_head(OrderedHead { ticket, row });
            }
        }
        Ok(None)
    }

    /// Whether the first in order is still first, after it was served but could not be granted.
    fn is_still_first(&self, first: OrderedHead) -> bool {
        let head = || queue::head(&QueueWords::reading(self.shard.memory), first.row);
        order::first(&self.order()) == Ok(Some(first.row)) && head() == Ok(Some(first.ticket))
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

    /// Takes a ticket out of its queue without a grant, and adds one to `counter`. If it was first in order, it pays as
    /// if it had been granted: otherwise large requests that give up just in time would keep all others waiting. A
    /// ticket that no longer waits gives back what it was granted.
    pub(in crate::engine) fn leave_in_order(
        &self,
        row: u64,
        costs: &Costs,
        ticket: u64,
        counter: Option<&AtomicU64>,
    ) -> Result<(), Box<Error>> {
        let was_first = self.first_in_order() == Some(OrderedHead { ticket, row });
        if was_first {
            self.charge_in_order(row, costs, None);
        }
        self.free_ticket(ticket, counter)?;
        if was_first {
            self.replace_in_order(row);
        } else {
            self.order_key(row);
        }
        Ok(())
    }

    /// Whether a request of the key of a row has to wait until others are served.
    pub(in crate::engine) fn is_behind_others(&self, row: Row<'_>, costs: &Costs) -> bool {
        !self.shard.has_no_waiters(row) || (self.asks_for_overall(costs) && self.first_in_order().is_some())
    }

    /// Serves the head of a row's queue like [`serve_head`](Self::serve_head). Also returns which is first in order
    /// afterwards, if keys are ordered.
    pub(in crate::engine) fn serve_head_and_first(
        &mut self,
        row: u64,
    ) -> Result<(Served, Option<ServedFirst>), Box<Error>> {
        if !self.shard.set.has_overall() {
            return Ok((self.serve_queue(row, None)?, None));
        }
        self.read_clock();
        self.serve_head_in_order(row)
    }

    /// Serves those that ask for what all keys share, in their order, and then the head of a row's queue, at the time
    /// that was last read from the clock. Also returns which is first in order afterwards.
    fn serve_head_in_order(&mut self, row: u64) -> Result<(Served, Option<ServedFirst>), Box<Error>> {
        self.order_key(row);
        let first = self.serve_in_order()?;
        if let Some(first) = first.filter(|first| first.head.row == row) {
            // It was just found blocked, or is to look again.
            return Ok((Served::Blocked(self.blocked_as_first(first)), Some(first)));
        }
        if self.shard.has_no_waiters(self.shard.row(row)) {
            return Ok((Served::NoWaiters, first));
        }
        let served = self.serve_queue_now(row, first.map(|first| first.head.ticket))?;
        // A grant from the key's own limits, or a ticket that left its queue, may have brought the key into the order.
        let head = self.first_in_order();
        let as_before = |head| first.filter(|first| first.head == head);
        let first = head.map(|head| as_before(head).unwrap_or(ServedFirst::found(head)));
        Ok((served, first))
    }

    /// Serves those that ask for what all keys share, after the key of a row has given something back.
    #[cold]
    pub(in crate::engine) fn serve_in_order_after_release(
        &mut self,
        row: u64,
        freed: Option<u64>,
    ) -> Result<(), Box<Error>> {
        // The lock was taken for something that needs no clock.
        self.read_clock();
        let was_first = order::first(&self.order()) == Ok(Some(row));
        if let Some(freed) = freed {
            self.correct_freed(freed);
        }
        let first = if self.is_ordered(row) {
            // Its head waits for its turn and for what all keys share.
            self.serve_in_order()?
        } else {
            self.serve_head_in_order(row)?.1
        };
        // What its key got back may have made it the first in order. If it was first, what its key was charged may have
        // made another one first.
        let may_be_new = |first: &ServedFirst| was_first || first.head.row == row;
        if let Some(first) = first.filter(may_be_new) {
            self.notify_first(first);
        }
        Ok(())
    }

    /// Wakes the first in order if it has to work out when time alone will serve it, unless it was woken already.
    pub(in crate::engine) fn notify_first(&self, first: ServedFirst) {
        if !first.was_woken && self.is_to_look(self.blocked_as_first(first)) {
            self.notify_head(first.head);
        }
    }

    /// Grants what all keys share to those that ask for it, one after the other, as far as the limits admit them at the
    /// time that was last read from the clock. Returns which is first in order afterwards: it is blocked, or was woken
    /// to go on.
    #[cold]
    fn serve_in_order(&mut self) -> Result<Option<ServedFirst>, Box<Error>> {
        let mut has_another_first = false;
        let mut first = self.first_in_order();
        for _ in 0..MAX_GRANTED {
            let Some(head) = first else {
                return Ok(None);
            };
            // It went to sleep behind another, but only a release serves it, so it has nothing to work out.
            if has_another_first && let Some(blocked) = self.only_by_others(head) {
                return Ok(Some(ServedFirst {
                    blocked: Some(blocked),
                    ..ServedFirst::found(head)
                }));
            }
            match self.serve_queue_now(head.row, Some(head.ticket))? {
                Served::Blocked(blocked) if self.is_still_first(head) => {
                    let was_woken = has_another_first && self.is_to_look(blocked);
                    if was_woken {
                        self.notify_head(head);
                    }
                    return Ok(Some(ServedFirst {
                        head,
                        blocked: Some(blocked),
                        was_woken,
                    }));
                }
                _ => {
                    has_another_first = true;
                    first = self.first_in_order();
                }
            }
        }
        Ok(first.map(|head| {
            self.notify_head(head);
            ServedFirst {
                was_woken: true,
                ..ServedFirst::found(head)
            }
        }))
    }

    /// What the first in order waits for, if it waits only for what others hold: whoever releases that serves it. Also
    /// `None` if it would no longer be first once it is served.
    fn only_by_others(&self, first: OrderedHead) -> Option<Blocked> {
        let ticket = self.shard.memory.ticket(first.ticket)?;
        let (row, costs) = (self.shard.row(first.row), self.shard.costs_of(ticket));
        let blocked = self.blocked(row, &costs);
        let waits = blocked.by_others && !self.is_to_look(blocked);
        // Some leave as soon as they are served, and make room for the next.
        let makes_room = || {
            let is_impossible = self.shard.of(row).impossible_cost(row, &costs).is_some();
            is_impossible || self.leaves(ticket) || self.is_passed_over(ticket)
        };
        (waits && !makes_room()).then_some(blocked)
    }

    /// What the first in order waits for.
    pub(in crate::engine) fn blocked_as_first(&self, first: ServedFirst) -> Blocked {
        let work_out = || {
            let ticket = self.shard.memory.ticket(first.head.ticket);
            ticket.map_or_else(Blocked::default, |ticket| {
                self.blocked(self.shard.row(first.head.row), &self.shard.costs_of(ticket))
            })
        };
        first.blocked.unwrap_or_else(work_out)
    }

    /// Serves those that ask for what all keys share, when which keys are ordered may have changed.
    pub(in crate::engine) fn serve_all_in_order(&mut self) -> Result<Option<OrderedHead>, Box<Error>> {
        self.read_clock();
        for index in 0..self.shard.memory.touched_tickets() {
            if let Some(row) = self.shard.queue_headed_by(index) {
                self.order_key(row);
            }
        }
        Ok(self.serve_in_order()?.map(|first| first.head))
    }

    pub(in crate::engine) fn notify_head(&self, head: OrderedHead) {
        if let Some(ticket) = self.shard.memory.ticket(head.ticket) {
            self.notify(head.ticket, ticket);
        }
    }

    /// For an ordered head that is not the first: what it looks after, if it is near enough to the first. The outer
    /// `None` means that the ticket is not such a head, and waits for its own key.
    pub(in crate::engine) fn behind_in_order(&self, index: u64) -> Option<Option<LookAfter>> {
        if !self.shard.set.has_overall() {
            return None;
        }
        let row = self.shard.queue_headed_by(index)?;
        let head = self.first_in_order().filter(|first| first.ticket != index)?;
        if !self.is_ordered(row) {
            return None;
        }
        let rank = order::rank(&self.order(), row, MAX_RANK).max(1);
        if rank > MAX_RANK {
            return Some(None);
        }
        let first = self.blocked_as_first(ServedFirst::found(head));
        Some(Some(LookAfter { first, rank }))
    }
}
