//! The queues in which requests wait: doubly linked lists of tickets in a fixed table, each first in, first out.
//!
//! A table has one queue, or one per key; all of them share its tickets and its list of free tickets.
//!
//! This is pure, like the limit rules: it knows no clock, no memory and no lock. It reads and changes words behind
//! [`Queue`] and [`QueueMut`], and if all of them are zero, the table has never been used. Only the states of the
//! tickets are authoritative; the links, the list of free tickets and the counts follow from them, and [`rebuild`]
//! restores them.

#[cfg(test)]
mod tests;

use crate::sorting::sort_by;

/// An end of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// The ticket to be served next, plus one; zero if nobody waits.
    Head,
    /// The ticket that came last, plus one.
    Tail,
}

/// A word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableWord {
    /// The head of the list of free tickets, plus one.
    Free,
    /// Tickets from this index on have never been used.
    Untouched,
    /// The number of the latest ticket.
    Serial,
    /// How many requests wait in all queues together.
    Length,
    /// The most that ever waited at once.
    LongestLength,
}

/// A word of one ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketWord {
    /// The participant that waits; zero if it gave up but could not get the lock to leave the queue.
    Owner,
    /// Number and phase: see [`TicketState`].
    State,
    /// The ticket behind, plus one; for a free ticket, the next free one.
    Next,
    /// The ticket in front, plus one.
    Previous,
}

/// Read access to the words of queues. Any word may hold anything.
pub(crate) trait Queue {
    /// How many tickets the table has.
    fn capacity(&self) -> u64;
    /// How many queues there are.
    fn queues(&self) -> u64;
    /// The queue of the ticket at `index`.
    fn queue_of(&self, index: u64) -> u64;
    /// An end of a queue; zero if there is no such queue.
    fn load_end(&self, queue: u64, end: QueueEnd) -> u64;
    fn load(&self, word: TableWord) -> u64;
    /// A word of the ticket at `index`; zero beyond the table.
    fn load_ticket(&self, index: u64, word: TicketWord) -> u64;
}

/// Write access to the words of queues.
pub(crate) trait QueueMut: Queue {
    /// Stores an end of a queue; `queue` is below [`Queue::queues`].
    fn store_end(&mut self, queue: u64, end: QueueEnd, value: u64);
    fn store(&mut self, word: TableWord, value: u64);
    /// Stores a word of the ticket at `index`, which is below the capacity.
    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64);
}

/// Links, counts or states contradict each other. Whatever was stored before this was noticed must be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// How far a ticket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's.
    Free,
    /// In the queue.
    Waiting,
    /// Out of the queue with everything it asked for; its owner has not collected it yet.
    Granted,
    /// Out of the queue, because its owner did not respond when its turn came. It keeps its number, and thus its
    /// place, until its owner looks again.
    PassedOver,
}

/// The state word of a ticket: the phase in the low two bits, the number above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketState {
    pub(crate) serial: u64,
    pub(crate) phase: Phase,
}

impl TicketState {
    const MAX_SERIAL: u64 = u64::MAX >> 2;

    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            serial: word >> 2,
            phase: match word & 3 {
                1 => Phase::Waiting,
                2 => Phase::Granted,
                3 => Phase::PassedOver,
                _ => Phase::Free,
            },
        }
    }

    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        let phase = match self.phase {
            Phase::Free => 0,
            Phase::Waiting => 1,
            Phase::Granted => 2,
            Phase::PassedOver => 3,
        };
        (self.serial << 2) | phase
    }
}

/// A ticket, with the number that tells it from later ones in the same slot. Numbers grow with every ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketReference {
    pub(crate) index: u64,
    pub(crate) serial: u64,
}

/// A slot for a new ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeTicket {
    pub(crate) index: u64,
    next: Option<u64>,
}

/// The state of the ticket at `index`.
#[inline]
pub(crate) fn state(queue: &(impl Queue + ?Sized), index: u64) -> TicketState {
    TicketState::from_word(queue.load_ticket(index, TicketWord::State))
}

/// Where the next ticket would go; `None` if the table is full.
pub(crate) fn find_free(queue: &(impl Queue + ?Sized)) -> Result<Option<FreeTicket>, Damaged> {
    let capacity = queue.capacity();
    let (index, next) = match queue.load(TableWord::Free).checked_sub(1) {
        Some(index) => (index, Some(queue.load_ticket(index, TicketWord::Next))),
        None => (queue.load(TableWord::Untouched), None),
    };
    if index == capacity && next.is_none() {
        return Ok(None);
    }
    if index >= capacity || state(queue, index).phase != Phase::Free {
        return Err(Damaged);
    }
    Ok(Some(FreeTicket { index, next }))
}

/// Appends a ticket of `owner` to its queue, in the slot that [`find_free`] found. The ticket's queue must have been
/// stored already.
pub(crate) fn enqueue(
    queue: &mut (impl QueueMut + ?Sized),
    free: FreeTicket,
    owner: u64,
) -> Result<TicketReference, Damaged> {
    let FreeTicket { index, next } = free;
    let own_queue = queue.queue_of(index);
    let tail = queue.load_end(own_queue, QueueEnd::Tail);
    let last = tail.checked_sub(1);
    if own_queue >= queue.queues() || (queue.load_end(own_queue, QueueEnd::Head) == 0) != last.is_none() {
        return Err(Damaged);
    }
    if let Some(last) = last
        && (state(queue, last).phase != Phase::Waiting || queue.load_ticket(last, TicketWord::Next) != 0)
    {
        return Err(Damaged);
    }
    match next {
        Some(next) => queue.store(TableWord::Free, next),
        None => queue.store(TableWord::Untouched, index + 1),
    }
    let latest = queue.load(TableWord::Serial);
    let serial = if latest >= TicketState::MAX_SERIAL {
        1
    } else {
        latest + 1
    };
    queue.store(TableWord::Serial, serial);
    queue.store_ticket(index, TicketWord::Owner, owner);
    queue.store_ticket(index, TicketWord::Next, 0);
    queue.store_ticket(index, TicketWord::Previous, tail);
    let waiting = TicketState {
        serial,
        phase: Phase::Waiting,
    };
    queue.store_ticket(index, TicketWord::State, waiting.to_word());
    match last {
        Some(last) => queue.store_ticket(last, TicketWord::Next, index + 1),
        None => queue.store_end(own_queue, QueueEnd::Head, index + 1),
    }
    queue.store_end(own_queue, QueueEnd::Tail, index + 1);
    let length = queue.load(TableWord::Length).saturating_add(1);
    queue.store(TableWord::Length, length);
    if length > queue.load(TableWord::LongestLength) {
        queue.store(TableWord::LongestLength, length);
    }
    Ok(TicketReference { index, serial })
}

/// The ticket to be served next in `own_queue`.
pub(crate) fn head(queue: &(impl Queue + ?Sized), own_queue: u64) -> Result<Option<u64>, Damaged> {
    let Some(index) = queue.load_end(own_queue, QueueEnd::Head).checked_sub(1) else {
        return Ok(None);
    };
    let is_first = index < queue.capacity()
        && queue.queue_of(index) == own_queue
        && state(queue, index).phase == Phase::Waiting
        && queue.load_ticket(index, TicketWord::Previous) == 0;
    if is_first { Ok(Some(index)) } else { Err(Damaged) }
}

/// The ticket in front of a waiting one.
pub(crate) fn predecessor(queue: &(impl Queue + ?Sized), index: u64) -> Option<u64> {
    queue
        .load_ticket(index, TicketWord::Previous)
        .checked_sub(1)
        .filter(|before| *before < queue.capacity() && state(queue, *before).phase == Phase::Waiting)
}

/// The ticket behind a waiting one.
pub(crate) fn successor(queue: &(impl Queue + ?Sized), index: u64) -> Option<u64> {
    queue
        .load_ticket(index, TicketWord::Next)
        .checked_sub(1)
        .filter(|behind| *behind < queue.capacity() && state(queue, *behind).phase == Phase::Waiting)
}

/// Takes a waiting ticket out of the queue: it has been given what it asked for.
pub(crate) fn grant(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let serial = unlink(queue, index)?;
    let granted = TicketState {
        serial,
        phase: Phase::Granted,
    };
    queue.store_ticket(index, TicketWord::State, granted.to_word());
    Ok(())
}

/// Takes a waiting ticket out of the queue and frees it: its owner no longer waits.
pub(crate) fn leave(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let serial = unlink(queue, index)?;
    free(queue, index, serial);
    Ok(())
}

/// Frees a ticket that is out of the queue, granted or passed over.
pub(crate) fn free_unlinked(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let TicketState { serial, phase } = state(queue, index);
    if index >= queue.capacity() || !matches!(phase, Phase::Granted | Phase::PassedOver) {
        return Err(Damaged);
    }
    free(queue, index, serial);
    Ok(())
}

/// Takes a waiting ticket out of the queue until its owner looks again.
pub(crate) fn pass_over(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let serial = unlink(queue, index)?;
    store_passed_over(queue, index, serial);
    Ok(())
}

/// Turns a granted ticket into one that is passed over.
pub(crate) fn lapse(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let TicketState { serial, phase } = state(queue, index);
    if index >= queue.capacity() || phase != Phase::Granted {
        return Err(Damaged);
    }
    store_passed_over(queue, index, serial);
    Ok(())
}

fn store_passed_over(queue: &mut (impl QueueMut + ?Sized), index: u64, serial: u64) {
    let passed_over = TicketState {
        serial,
        phase: Phase::PassedOver,
    };
    queue.store_ticket(index, TicketWord::State, passed_over.to_word());
}

/// Puts a ticket that was passed over back into its queue, ahead of those with higher numbers.
pub(crate) fn resume(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let TicketState { serial, phase } = state(queue, index);
    let own_queue = queue.queue_of(index);
    if index >= queue.capacity() || phase != Phase::PassedOver || own_queue >= queue.queues() {
        return Err(Damaged);
    }
    let mut before = 0;
    let mut behind = queue.load_end(own_queue, QueueEnd::Head);
    // Bounded by the size of the table, whatever the links say.
    for _ in 0..=queue.capacity() {
        let Some(other) = behind.checked_sub(1) else { break };
        let ticket = state(queue, other);
        if other >= queue.capacity() || ticket.phase != Phase::Waiting {
            return Err(Damaged);
        }
        if ticket.serial > serial {
            break;
        }
        before = behind;
        behind = queue.load_ticket(other, TicketWord::Next);
    }
    let waiting = TicketState {
        serial,
        phase: Phase::Waiting,
    };
    queue.store_ticket(index, TicketWord::Previous, before);
    queue.store_ticket(index, TicketWord::Next, behind);
    queue.store_ticket(index, TicketWord::State, waiting.to_word());
    match before.checked_sub(1) {
        Some(before) => queue.store_ticket(before, TicketWord::Next, index + 1),
        None => queue.store_end(own_queue, QueueEnd::Head, index + 1),
    }
    match behind.checked_sub(1) {
        Some(behind) => queue.store_ticket(behind, TicketWord::Previous, index + 1),
        None => queue.store_end(own_queue, QueueEnd::Tail, index + 1),
    }
    queue.store(TableWord::Length, queue.load(TableWord::Length).saturating_add(1));
    Ok(())
}

fn unlink(queue: &mut (impl QueueMut + ?Sized), index: u64) -> Result<u64, Damaged> {
    let TicketState { serial, phase } = state(queue, index);
    if index >= queue.capacity() || phase != Phase::Waiting {
        return Err(Damaged);
    }
    let this = index + 1;
    let own_queue = queue.queue_of(index);
    let before = queue.load_ticket(index, TicketWord::Previous);
    let behind = queue.load_ticket(index, TicketWord::Next);
    let expected_before = match before.checked_sub(1) {
        Some(before) => queue.load_ticket(before, TicketWord::Next),
        None => queue.load_end(own_queue, QueueEnd::Head),
    };
    let expected_behind = match behind.checked_sub(1) {
        Some(behind) => queue.load_ticket(behind, TicketWord::Previous),
        None => queue.load_end(own_queue, QueueEnd::Tail),
    };
    if expected_before != this || expected_behind != this {
        return Err(Damaged);
    }
    match before.checked_sub(1) {
        Some(before) => queue.store_ticket(before, TicketWord::Next, behind),
        None => queue.store_end(own_queue, QueueEnd::Head, behind),
    }
    match behind.checked_sub(1) {
        Some(behind) => queue.store_ticket(behind, TicketWord::Previous, before),
        None => queue.store_end(own_queue, QueueEnd::Tail, before),
    }
    queue.store(TableWord::Length, queue.load(TableWord::Length).saturating_sub(1));
    Ok(serial)
}

fn free(queue: &mut (impl QueueMut + ?Sized), index: u64, serial: u64) {
    let free = TicketState {
        serial,
        phase: Phase::Free,
    };
    queue.store_ticket(index, TicketWord::State, free.to_word());
    queue.store_ticket(index, TicketWord::Owner, 0);
    queue.store_ticket(index, TicketWord::Next, queue.load(TableWord::Free));
    queue.store(TableWord::Free, index + 1);
}

/// How many tickets have ever been used.
fn touched(queue: &(impl Queue + ?Sized)) -> u64 {
    queue.load(TableWord::Untouched).min(queue.capacity())
}

/// Whether links and counts agree with the states. Bounded by the size of the table, whatever the links say.
pub(crate) fn is_consistent(queue: &(impl Queue + ?Sized)) -> bool {
    if queue.load(TableWord::Untouched) > queue.capacity() {
        return false;
    }
    let touched = touched(queue);
    let count = |phase| {
        (0..touched)
            .filter(|index| state(queue, *index).phase == phase)
            .count() as u64
    };
    let waiting = count(Phase::Waiting);
    let in_queues = (0..queue.queues()).try_fold(0, |sum: u64, own_queue| {
        let length = length_of_queue(queue, own_queue, touched)?;
        // The queues share the table, so if their links lead to more tickets than the table has, the links are wrong.
        sum.checked_add(length).filter(|sum| *sum <= touched)
    });
    queue.load(TableWord::Length) == waiting
        && in_queues == Some(waiting)
        && length_of_free_list(queue, touched) == Some(count(Phase::Free))
}

/// How many tickets a queue links; `None` if its links are wrong.
fn length_of_queue(queue: &(impl Queue + ?Sized), own_queue: u64, touched: u64) -> Option<u64> {
    let mut length = 0;
    let mut before = 0;
    let mut serial = None;
    let mut next = queue.load_end(own_queue, QueueEnd::Head);
    while let Some(index) = next.checked_sub(1) {
        let ticket = state(queue, index);
        let is_in_order = serial.is_none_or(|serial| serial <= ticket.serial);
        length += 1;
        if index >= touched
            || length > touched
            || ticket.phase != Phase::Waiting
            || !is_in_order
            || queue.queue_of(index) != own_queue
            || queue.load_ticket(index, TicketWord::Previous) != before
        {
            return None;
        }
        serial = Some(ticket.serial);
        before = next;
        next = queue.load_ticket(index, TicketWord::Next);
    }
    (queue.load_end(own_queue, QueueEnd::Tail) == before).then_some(length)
}

fn length_of_free_list(queue: &(impl Queue + ?Sized), touched: u64) -> Option<u64> {
    let mut length = 0;
    let mut next = queue.load(TableWord::Free);
    while let Some(index) = next.checked_sub(1) {
        length += 1;
        if index >= touched || length > touched || state(queue, index).phase != Phase::Free {
            return None;
        }
        next = queue.load_ticket(index, TicketWord::Next);
    }
    Some(length)
}

/// Restores links and counts from the states of the tickets, in the order of their numbers. Idempotent. A ticket that
/// waits in a queue that does not exist is freed: its owner finds it gone and starts again.
pub(crate) fn rebuild(queue: &mut (impl QueueMut + ?Sized)) {
    let capacity = queue.capacity();
    let queues = queue.queues();
    for index in 0..capacity {
        let TicketState { serial, phase } = state(queue, index);
        if phase == Phase::Waiting && queue.queue_of(index) >= queues {
            let free = TicketState {
                serial,
                phase: Phase::Free,
            };
            queue.store_ticket(index, TicketWord::State, free.to_word());
        }
    }
    let used = |index: &u64| state(queue, *index).phase != Phase::Free;
    let touched = (0..capacity).rev().find(used).map_or(0, |last| last + 1);
    // Only runs after a death or damage; a queue is rarely long, and the allocation holds nobody up.
    let mut waiting: Vec<(u64, u64, u64)> = (0..touched)
        .map(|index| (state(queue, index), index))
        .filter(|(ticket, _)| ticket.phase == Phase::Waiting)
        .map(|(ticket, index)| (queue.queue_of(index), ticket.serial, index))
        .collect();
    sort_by(&mut waiting, |one, other| one < other);
    let latest = (0..touched).map(|index| state(queue, index).serial).max();
    queue.store(TableWord::Untouched, touched);
    let mut first_free = 0;
    for index in (0..touched).rev() {
        let TicketState { serial, phase } = state(queue, index);
        if phase == Phase::Free {
            let free = TicketState { serial, phase };
            queue.store_ticket(index, TicketWord::State, free.to_word());
            queue.store_ticket(index, TicketWord::Owner, 0);
            queue.store_ticket(index, TicketWord::Next, first_free);
            first_free = index + 1;
        }
    }
    queue.store(TableWord::Free, first_free);
    let mut groups = waiting.chunk_by(|one, other| one.0 == other.0).peekable();
    for own_queue in 0..queues {
        let tickets = groups
            .next_if(|tickets| tickets.first().is_some_and(|(of, _, _)| *of == own_queue))
            .unwrap_or_default();
        let mut before = 0;
        for (position, (_, _, index)) in tickets.iter().enumerate() {
            let next = tickets.get(position + 1).map_or(0, |(_, _, next)| next + 1);
            queue.store_ticket(*index, TicketWord::Previous, before);
            queue.store_ticket(*index, TicketWord::Next, next);
            before = index + 1;
        }
        let first = tickets.first().map_or(0, |(_, _, first)| first + 1);
        queue.store_end(own_queue, QueueEnd::Head, first);
        queue.store_end(own_queue, QueueEnd::Tail, before);
    }
    queue.store(TableWord::Length, waiting.len() as u64);
    // New tickets must have higher numbers than those that wait.
    if let Some(latest) = latest
        && latest > queue.load(TableWord::Serial)
    {
        queue.store(TableWord::Serial, latest);
    }
}
