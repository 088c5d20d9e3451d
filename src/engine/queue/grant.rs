//! Serving the queue: whichever process finds that the limits allow it grants the head what it asks for, all of it or
//! nothing.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::admit::charge::Admission;
use crate::engine::queue::deadline::Deadline;
use crate::engine::settle::refund::Origin;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::pending_wake::BY_PROCESS_FUTEX;
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::set_engine::Shard;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, SHORTEST_WAIT};
use crate::engine::terms::definition_bits::{DefinitionBits, TierIndex};
use crate::engine::terms::own_capacities::LimitMask;
use crate::error::Error;
use crate::limit::Assessment;
use crate::queue::{self, Phase, QueueEnd};
use crate::shm::layout::places::{HoldReference, TicketPlace};
use crate::shm::layout::records::WAIT_BUCKETS;
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::Transaction;

/// The lowest bit, in a ticket's `request`, of the definition under which it was granted.
const DEFINITION_SHIFT: u32 = 24;
/// The lowest bit, in a ticket's `request`, of the tier that its key was in at the time.
const TIER_SHIFT: u32 = 32;

/// The most tickets that may leave a queue without a grant before the lock is released.
const MAX_PASSED: usize = 1024;

/// Why the head of a queue was not granted what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// Nanoseconds until time alone has ended all throttling and every refusal that it can end; zero if there is
    /// none.
    pub(crate) wait: u64,
    /// Whether something is missing that comes back only when others release it or die.
    pub(crate) by_others: bool,
}

/// The result of serving a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    NoWaiters,
    /// The head has what it asked for, and was notified.
    Granted,
    Blocked(Blocked),
}

impl<Rules> Shard<'_, Rules> {
    /// What a ticket asks for. A limit for which it has no place is damage, and is left out.
    pub(crate) fn costs_of(&self, ticket: TicketPlace<'_>) -> Costs {
        let mut costs = Costs::default();
        for index in ticket.limits().iter() {
            if let Some(limit) = ticket.limit(index) {
                costs.limits.insert(index);
                costs.amounts[index] = limit.cost().load(Ordering::Relaxed);
            }
        }
        costs
    }

    /// The hold that a granted ticket was given, if it is still there.
    pub(in crate::engine) fn hold_of_grant(&self, ticket: TicketPlace<'_>) -> Option<HoldReference> {
        ticket.granted_hold().filter(|hold| {
            // No matter who owns it: the ticket's owner may have been taken for dead, or may have given the ticket
            // up.
            self.memory.hold(hold.index).is_some_and(|place| {
                place.is_taken() && place.serial().load(Ordering::Relaxed) == hold.serial.get()
            })
        })
    }

    /// Whether nobody waits in the queue of a row.
    #[inline]
    pub(crate) fn has_no_waiters(&self, row: Row<'_>) -> bool {
        self.memory.queue_end(row, QueueEnd::Head) == 0
    }

    /// Whether a request of a row's key would overtake nobody. In a set with overall limits, it may overtake anybody
    /// who waits.
    #[inline(always)]
    pub(crate) fn nobody_is_ahead(&self, row: Row<'_>) -> bool {
        if self.set.has_overall() {
            self.has_no_waiters_at_all()
        } else {
            self.has_no_waiters(row)
        }
    }

    /// Whether nobody waits in any queue.
    #[inline]
    pub(crate) fn has_no_waiters_at_all(&self) -> bool {
        self.memory.control().queued.load(Ordering::Relaxed) == 0
    }

    /// The queue whose head the ticket is, if it is a head.
    pub(in crate::engine) fn queue_headed_by(&self, index: u64) -> Option<u64> {
        let queue = QueueWords::reading(self.memory);
        let waits = queue::state(&queue, index).phase == Phase::Waiting;
        (waits && queue::predecessor(&queue, index).is_none()).then(|| queue::Queue::queue_of(&queue, index))
    }
}

impl<'a> LockedShard<'a> {
    /// The head of a row's queue, which is served next. Tickets that were given up leave the queue first.
    pub(in crate::engine) fn head(&self, row: u64) -> Result<Option<u64>, Box<Error>> {
        loop {
            let head = match queue::head(&QueueWords::reading(self.shard.memory), row) {
                Ok(head) => head,
                Err(queue::Damaged) => {
                    self.rebuild_or_poison()?;
                    queue::head(&QueueWords::reading(self.shard.memory), row)
                        .map_err(|_| self.shard.poisoned())?
                }
            };
            let Some(index) = head else { return Ok(None) };
            let was_given_up = self
                .shard
                .memory
                .ticket(index)
                .is_some_and(|ticket| ticket.owner().load(Ordering::Relaxed) == 0);
            if !was_given_up {
                return Ok(Some(index));
            }
            // It leaves the queue, so the loop ends.
            self.take_back_ticket(index, &self.shard.memory.control().reclaimed_tickets)?;
        }
    }

    /// Serves the head of a row's queue if the limits allow it now. In a set with overall limits, the heads that ask
    /// for those are served first, in their order.
    #[cold]
    pub(crate) fn serve_head(&mut self, row: u64) -> Result<Served, Box<Error>> {
        Ok(self.serve_head_and_first(row)?.0)
    }

    /// Serves the head of a row's queue if the limits allow it now. What all keys share is granted to no ticket but
    /// `first`.
    pub(in crate::engine) fn serve_queue(
        &mut self,
        row: u64,
        first: Option<u64>,
    ) -> Result<Served, Box<Error>> {
        if self.shard.has_no_waiters(self.shard.row(row)) {
            return Ok(Served::NoWaiters);
        }
        self.read_clock();
        self.serve_queue_now(row, first)
    }

    /// The same, at the time that was last read from the clock.
    pub(in crate::engine) fn serve_queue_now(
        &mut self,
        row: u64,
        first: Option<u64>,
    ) -> Result<Served, Box<Error>> {
        self.lapse_if_due(row)?;
        let mut has_another_head = false;
        for _ in 0..MAX_PASSED {
            let Some(index) = self.head(row)? else {
                return Ok(Served::NoWaiters);
            };
            let Some(ticket) = self.shard.memory.ticket(index) else {
                return Err(self.shard.poisoned());
            };
            if ticket.is_expired(self.now.monotonic) {
                // Its owner will find the ticket gone and the time up. Those behind it need not wait until the owner
                // looks.
                let costs = self.shard.costs_of(ticket);
                let counter = &self.shard.memory.control().timed_out;
                self.leave_in_order(row, &costs, index, Some(counter))?;
                has_another_head = true;
                continue;
            }
            if self.pass_over_if_silent(index, ticket)? {
                has_another_head = true;
                continue;
            }
            let costs = self.shard.costs_of(ticket);
            let of_queue = self.shard.row(row);
            if self
                .shard
                .of(of_queue)
                .impossible_cost(of_queue, &costs)
                .is_some()
            {
                // No request is let into the queue with a cost that can never be met. So either the key has since moved
                // to another tier or been given another capacity, or this is damage. The owner finds the ticket gone
                // and begins again.
                self.take_back_ticket(index, &self.shard.memory.control().reclaimed_tickets)?;
                has_another_head = true;
                continue;
            }
            // Read once: a ticket can be given up without the lock at any moment, and a hold must have an owner.
            match ticket.owner().load(Ordering::Relaxed) {
                0 => {}
                owner => {
                    let may_be_granted = !self.asks_for_overall(&costs) || first == Some(index);
                    let served = if may_be_granted {
                        self.try_grant(self.shard.row(row), index, ticket, &costs, owner)?
                    } else {
                        Served::Blocked(self.blocked(of_queue, &costs))
                    };
                    // It went to sleep behind another. As the head, it has to work out when time alone will serve it.
                    if has_another_head && matches!(served, Served::Blocked(_)) {
                        self.order_key(row);
                        self.notify(index, ticket);
                    }
                    return Ok(served);
                }
            }
        }
        // The next look continues.
        Ok(Served::Blocked(Blocked {
            wait: SHORTEST_WAIT,
            by_others: false,
        }))
    }

    /// Serves the head of a row's queue, when that may have become another ticket, or when how long it has to wait may
    /// have changed. If it cannot be granted yet, its owner is woken to work out again when time alone will serve it.
    #[inline]
    pub(crate) fn serve_next(&mut self, row: u64) -> Result<(), Box<Error>> {
        if self.shard.has_no_waiters_at_all() {
            return Ok(());
        }
        self.serve_next_of_those_who_wait(row)
    }

    /// Does for every queue with waiters what [`serve_next`](Self::serve_next) does for one.
    pub(crate) fn serve_every_queue(&mut self) -> Result<(), Box<Error>> {
        if !self.shard.memory.is_keyed() {
            return self.serve_next(0);
        }
        if self.shard.has_no_waiters_at_all() {
            return Ok(());
        }
        let has_overall = self.shard.set.has_overall();
        let first = if has_overall {
            self.serve_all_in_order()?
        } else {
            None
        };
        // Bounded by the number of tickets, whatever the queues say.
        for index in 0..self.shard.memory.touched_tickets() {
            if let Some(queue) = self.shard.queue_headed_by(index) {
                let served = self.serve_queue(queue, first.map(|first| first.ticket))?;
                // Of the ordered heads, only the first watches the clock.
                let is_first = first.is_some_and(|first| first.row == queue);
                if !has_overall || is_first || !self.is_ordered(queue) {
                    self.notify_if_blocked(queue, served)?;
                }
            }
        }
        Ok(())
    }

    /// Serves the head of a row's queue, after something that it may wait for was given back. `freed` is the hold that
    /// gave it back, if there was one. The head is the same as before, and so is the instant at which time alone serves
    /// it. If no hold was free before, the head of any other queue may be waiting for the one given back.
    #[inline]
    pub(crate) fn serve_after_release(
        &mut self,
        row: u64,
        freed: Option<u64>,
        was_last_hold: bool,
    ) -> Result<(), Box<Error>> {
        if self.shard.has_no_waiters_at_all() {
            return Ok(());
        }
        if self.shard.set.has_overall() {
            self.serve_in_order_after_release(row, freed)?;
        } else {
            self.serve_queue(row, None)?;
        }
        if was_last_hold && self.shard.memory.is_keyed() {
            self.serve_who_may_wait_for_a_hold()?;
        }
        Ok(())
    }

    #[cold]
    fn serve_who_may_wait_for_a_hold(&mut self) -> Result<(), Box<Error>> {
        let first = self.first_in_order().map(|first| first.ticket);
        for index in 0..self.shard.memory.touched_tickets() {
            if self.shard.memory.has_no_free_hold() {
                return Ok(());
            }
            if let Some(queue) = self.shard.queue_headed_by(index) {
                self.serve_queue(queue, first)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn serve_next_of_those_who_wait(&mut self, row: u64) -> Result<(), Box<Error>> {
        let (served, first) = self.serve_head_and_first(row)?;
        self.notify_if_blocked(row, served)?;
        // Another may have been first until now.
        if let Some(first) = first.filter(|first| first.head.row != row) {
            self.notify_first(first);
        }
        Ok(())
    }

    /// Whether a blocked head has to work out when to look on its own: when time alone will serve it, or when the lease
    /// of a hold expires, because it is the head that looks for that.
    pub(in crate::engine) fn is_to_look(&self, blocked: Blocked) -> bool {
        blocked.wait > 0 || (blocked.by_others && self.shard.has_leases)
    }

    /// Wakes the head of a row's queue if it has to work out again when time alone will serve it.
    fn notify_if_blocked(&self, row: u64, served: Served) -> Result<(), Box<Error>> {
        let Served::Blocked(blocked) = served else {
            return Ok(());
        };
        if self.is_to_look(blocked)
            && let Some(index) = self.head(row)?
            && let Some(ticket) = self.shard.memory.ticket(index)
        {
            self.notify(index, ticket);
        }
        Ok(())
    }

    fn try_grant(
        &self,
        row: Row<'a>,
        index: u64,
        ticket: TicketPlace<'a>,
        costs: &Costs,
        owner: u64,
    ) -> Result<Served, Box<Error>> {
        let shard = self.shard.of(row);
        if self.throttles(row, costs) > 0 {
            return Ok(Served::Blocked(self.blocked(row, costs)));
        }
        let mut admission = Admission::of(row.into(), costs);
        if !self.find_hold_for(&mut admission)? {
            return Ok(Served::Blocked(self.blocked(row, costs)));
        }
        let mut is_sound = true;
        let note = |index, decided: Decided| {
            if let Some(limit) = ticket.limit(index) {
                // Means nothing until the state says that the ticket was granted.
                limit.set_mark(decided.mark);
            }
        };
        let granted = self.charge(&admission, note, |transaction, waived| {
            let take_hold = |free| self.take_hold(transaction, row, free, owner, costs, waived);
            let hold = admission.hold.and_then(take_hold);
            let (hold, serial) = hold.map_or((0, 0), |hold| (hold.index + 1, hold.serial.get()));
            ticket.hold().store(hold, Ordering::Relaxed);
            ticket.hold_serial().store(serial, Ordering::Relaxed);
            ticket.granted_at().store(self.now.monotonic, Ordering::Relaxed);
            ticket.set_row(row.reference());
            ticket.set_definition(shard.definition());
            let mut queue = QueueWords::changing(shard.memory, &mut *transaction);
            is_sound = queue::grant(&mut queue, index).is_ok();
            is_sound.then(|| {
                self.count_wait(transaction, ticket);
                row.pin(transaction);
                self.note_lapse(ticket);
            })
        })?;
        if granted.is_some() {
            if self.asks_for_overall(costs) {
                self.charge_in_order(row.index, costs, self.shard.hold_of_grant(ticket));
                self.replace_in_order(row.index);
            } else {
                self.order_key(row.index);
            }
            self.notify(index, ticket);
            return Ok(Served::Granted);
        }
        if !is_sound {
            self.rebuild_or_poison()?;
            // Whoever looks next finds the queue sound.
            return Ok(Served::Blocked(Blocked {
                by_others: true,
                wait: 0,
            }));
        }
        if shard.set.has_lease_room {
            self.note_unmet(row, costs);
        }
        Ok(Served::Blocked(self.blocked(row, costs)))
    }

    /// Counts a granted waiter, and how long it waited.
    fn count_wait(&self, transaction: &mut Transaction<'_>, ticket: TicketPlace<'_>) {
        let control = self.shard.memory.control();
        let enqueued_at = ticket.enqueued_at().load(Ordering::Relaxed);
        let waited = self.now.monotonic.saturating_sub(enqueued_at);
        transaction.count(&control.waited, 1);
        transaction.count(&control.wait_times[wait_bucket(waited)], 1);
        transaction.count(&control.wait_time, waited);
    }

    /// How long a request with these costs has to wait, and for what.
    pub(in crate::engine) fn blocked(&self, row: Row<'_>, costs: &Costs) -> Blocked {
        let shard = self.shard.of(row);
        let mut blocked = Blocked {
            wait: self.throttles(row, costs),
            by_others: shard.wants_for_a_hold(costs),
        };
        // Once its key's own limits admit it, it joins the order, and only then does it wait for what all keys share.
        let joins_later = self.asks_for_overall(costs) && self.is_refused_by_key(row, costs);
        for (index, cost) in costs.iter() {
            let Some(limit) = shard.limits.get(index) else {
                continue;
            };
            // A shadow limit blocks nobody.
            if limit.shadow || (joins_later && limit.is_overall()) {
                continue;
            }
            match limit.of(row).verdict(row, self.now, cost) {
                Assessment::Refused { retry_after: None } => blocked.by_others = true,
                Assessment::Refused {
                    retry_after: Some(wait),
                } => blocked.wait = blocked.wait.max(wait),
                Assessment::Admissible => {}
            }
        }
        blocked
    }

    /// Frees a ticket that nobody will collect, gives back what it was granted, and adds one to `counter`.
    pub(in crate::engine) fn take_back_ticket(
        &self,
        index: u64,
        counter: &AtomicU64,
    ) -> Result<(), Box<Error>> {
        let phase = self.free_ticket(index, Some(counter))?;
        if phase == Phase::Waiting
            && let Some(ticket) = self.shard.memory.ticket(index)
        {
            self.order_key(ticket.row().index);
        }
        Ok(())
    }

    /// The same, but leaves it to the caller to update whether its key is ordered. Returns the phase that the ticket
    /// was in.
    pub(in crate::engine) fn free_ticket(
        &self,
        index: u64,
        counter: Option<&AtomicU64>,
    ) -> Result<Phase, Box<Error>> {
        let shard = self.shard;
        let (phase, place) = (
            queue::state(&QueueWords::reading(shard.memory), index).phase,
            shard.memory.ticket(index),
        );
        match phase {
            Phase::Free => {}
            Phase::Waiting => self.change_queue(counter, |queue| queue::leave(queue, index))?,
            Phase::PassedOver => self.change_queue(counter, |queue| {
                if let Some(ticket) = place {
                    shard.row(ticket.row().index).unpin(queue.store);
                }
                queue::free_unlinked(queue, index)
            })?,
            Phase::Granted => {
                let charged = place.map_or(0, |ticket| self.charged_for(ticket));
                self.change_queue(counter, |queue| {
                    if let Some(ticket) = place {
                        self.undo_grant(queue.store, ticket);
                        shard.row(ticket.row().index).unpin(queue.store);
                    }
                    queue::free_unlinked(queue, index)
                })?;
                if let Some(ticket) = place {
                    self.correct_undone(ticket, charged);
                }
            }
        }
        Ok(phase)
    }

    /// Gives back what a granted ticket took, none of which was used.
    pub(in crate::engine) fn undo_grant(&self, transaction: &mut Transaction<'_>, ticket: TicketPlace<'a>) {
        let row = self.shard.row(ticket.row().index);
        let origin = ticket.granted_origin();
        let shard = self.shard.of(row);
        // What its hold records is given back with the hold, below.
        for (index, cost) in shard.costs_of(ticket).iter() {
            let (Some(limit), Some(asked)) = (shard.limits.get(index), ticket.limit(index)) else {
                continue;
            };
            let reserved = Decided::charged(asked.mark(), cost);
            let limit = limit.of(row);
            let refunded = self.refund_unused(transaction, &limit, row, cost, &reserved, origin);
            transaction.count(&self.shard.counters(limit.index).refunded, refunded);
        }
        // If this is undone, the row is read for nothing.
        self.note_report(row);
        if let Some(hold) = self.shard.hold_of_grant(ticket) {
            self.free_hold(transaction, hold.index, Ending::Undone);
        }
    }
}

impl TicketPlace<'_> {
    /// The limits that are asked for.
    pub(in crate::engine) fn limits(self) -> LimitMask {
        LimitMask(self.request().load(Ordering::Relaxed) as u16)
    }

    /// The hold that a granted ticket was given.
    pub(in crate::engine) fn granted_hold(self) -> Option<HoldReference> {
        let index = self.hold().load(Ordering::Relaxed).checked_sub(1)?;
        let serial = NonZeroU64::new(self.hold_serial().load(Ordering::Relaxed))?;
        Some(HoldReference { index, serial })
    }

    /// The definition and the tier under which a ticket was granted.
    pub(in crate::engine) fn definition(self) -> DefinitionBits {
        let request = self.request().load(Ordering::Relaxed);
        DefinitionBits {
            generation: (request >> DEFINITION_SHIFT) as u8,
            tier: TierIndex((request >> TIER_SHIFT) as u8),
        }
    }

    fn set_definition(self, definition: DefinitionBits) {
        let others = self.request().load(Ordering::Relaxed) & !(0xffff << DEFINITION_SHIFT);
        let DefinitionBits { generation, tier } = definition;
        let generation = u64::from(generation) << DEFINITION_SHIFT;
        let tier = u64::from(tier.0) << TIER_SHIFT;
        self.request()
            .store(others | generation | tier, Ordering::Relaxed);
    }

    /// When and where a granted ticket took what it was granted.
    fn granted_origin(self) -> Origin {
        Origin {
            instant: self.granted_at().load(Ordering::Relaxed),
            definition: Some(self.definition()),
            row: self.row(),
            units_after: 0,
        }
    }

    /// Writes down what is asked for, and until when. The ticket has no owner yet.
    pub(in crate::engine) fn write_request(
        self,
        row: Row<'_>,
        costs: &Costs,
        by_process_futex: bool,
        now: u64,
        deadline: Deadline,
    ) {
        self.set_row(row.reference());
        let futex = if by_process_futex { BY_PROCESS_FUTEX } else { 0 };
        self.request()
            .store(u64::from(costs.limits.0) | futex, Ordering::Relaxed);
        for (index, cost) in costs.iter() {
            if let Some(limit) = self.limit(index) {
                limit.cost().store(cost, Ordering::Relaxed);
            }
        }
        self.enqueued_at().store(now, Ordering::Relaxed);
        self.looked_at().store(now, Ordering::Relaxed);
        self.deadline()
            .store(deadline.on_segment_clock(), Ordering::Relaxed);
    }
}

/// The histogram bucket for a wait of `nanos` nanoseconds.
fn wait_bucket(nanos: u64) -> usize {
    let microseconds = nanos / 1_000;
    let bits = (u64::BITS - microseconds.leading_zeros()) as usize;
    bits.min(WAIT_BUCKETS - 1)
}
