//! The lines in which requests wait: doubly linked lists of tickets in a fixed table, each first in, first out.
//!
//! A table has one line, or one for each key; its tickets, and the list of those that are free, serve all of them.
//!
//! Pure, as the limit rules are: it knows no clock, no memory and no lock. It reads and changes words behind [`Line`]
//! and [`LineMut`], and a row of zeros is a table that nobody has used yet. The one truth is the state of each ticket;
//! the links, the list of free tickets and the counts follow from it, and [`rebuild`] makes them again from it.

#[cfg(test)]
mod tests;

/// An end of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    /// The ticket that is served next, plus one; zero where nobody waits.
    Head,
    /// The ticket that came last, plus one.
    Tail,
}

/// A word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableWord {
    /// The first of the list of free tickets, plus one.
    Free,
    /// Tickets from this index on were never used.
    Untouched,
    /// The number of the latest ticket.
    Serial,
    /// How many wait, in all lines.
    Length,
    /// The most that ever waited at once.
    LongestLength,
}

/// A word of one ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketWord {
    /// The participant that waits; zero where it gave up without being able to say so under the lock.
    Owner,
    /// Number and phase: see [`TicketState`].
    State,
    /// The ticket behind, plus one; of a free ticket, the next free one.
    Next,
    /// The ticket before, plus one.
    Previous,
}

/// The words of lines, for reading. Every word may hold anything.
pub(crate) trait Line {
    /// How many tickets the table has.
    fn capacity(&self) -> u64;
    /// How many lines there are.
    fn lines(&self) -> u64;
    /// The line of the ticket at `index`.
    fn line_of(&self, index: u64) -> u64;
    /// An end of a line; zero beyond them.
    fn load_end(&self, line: u64, end: LineEnd) -> u64;
    fn load(&self, word: TableWord) -> u64;
    /// A word of the ticket at `index`; zero beyond the table.
    fn load_ticket(&self, index: u64, word: TicketWord) -> u64;
}

/// The words of lines, for changing.
pub(crate) trait LineMut: Line {
    /// Stores an end of a line, which is one of [`Line::lines`].
    fn store_end(&mut self, line: u64, end: LineEnd, value: u64);
    fn store(&mut self, word: TableWord, value: u64);
    /// Stores a word of the ticket at `index`, which is below the capacity.
    fn store_ticket(&mut self, index: u64, word: TicketWord, value: u64);
}

/// Links, counts or states contradict one another. What was stored before this was noticed must be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// How far a ticket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's.
    Free,
    /// In the line.
    Waiting,
    /// Out of the line, with everything taken that it asked for; its owner has not come for it yet.
    Granted,
}

/// The state word of a ticket: phase in the low two bits, number above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketState {
    pub(crate) serial: u64,
    pub(crate) phase: Phase,
}

impl TicketState {
    const MOST_SERIAL: u64 = u64::MAX >> 2;

    /// A phase that nobody writes reads as free.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            serial: word >> 2,
            phase: match word & 3 {
                1 => Phase::Waiting,
                2 => Phase::Granted,
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
        };
        (self.serial << 2) | phase
    }
}

/// A ticket and the number that tells it from a later one in the same place. Numbers grow with every ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketReference {
    pub(crate) index: u64,
    pub(crate) serial: u64,
}

/// A place for a new ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeTicket {
    pub(crate) index: u64,
    next: Option<u64>,
}

/// The state of the ticket at `index`.
#[inline]
pub(crate) fn state(line: &(impl Line + ?Sized), index: u64) -> TicketState {
    TicketState::from_word(line.load_ticket(index, TicketWord::State))
}

/// Where the next ticket would go; `None` where the table is full.
pub(crate) fn find_free(line: &(impl Line + ?Sized)) -> Result<Option<FreeTicket>, Damaged> {
    let capacity = line.capacity();
    let (index, next) = match line.load(TableWord::Free).checked_sub(1) {
        Some(index) => (index, Some(line.load_ticket(index, TicketWord::Next))),
        None => (line.load(TableWord::Untouched), None),
    };
    if index == capacity && next.is_none() {
        return Ok(None);
    }
    if index >= capacity || state(line, index).phase != Phase::Free {
        return Err(Damaged);
    }
    Ok(Some(FreeTicket { index, next }))
}

/// Puts a ticket of `owner` at the end of its line, in the place that [`find_free`] found. Which line that is has been
/// written down already.
pub(crate) fn enqueue(
    line: &mut (impl LineMut + ?Sized),
    free: FreeTicket,
    owner: u64,
) -> Result<TicketReference, Damaged> {
    let FreeTicket { index, next } = free;
    let own_line = line.line_of(index);
    let tail = line.load_end(own_line, LineEnd::Tail);
    let last = tail.checked_sub(1);
    if own_line >= line.lines() || (line.load_end(own_line, LineEnd::Head) == 0) != last.is_none() {
        return Err(Damaged);
    }
    if let Some(last) = last
        && (state(line, last).phase != Phase::Waiting || line.load_ticket(last, TicketWord::Next) != 0)
    {
        return Err(Damaged);
    }
    match next {
        Some(next) => line.store(TableWord::Free, next),
        None => line.store(TableWord::Untouched, index + 1),
    }
    let latest = line.load(TableWord::Serial);
    let serial = if latest >= TicketState::MOST_SERIAL {
        1
    } else {
        latest + 1
    };
    line.store(TableWord::Serial, serial);
    line.store_ticket(index, TicketWord::Owner, owner);
    line.store_ticket(index, TicketWord::Next, 0);
    line.store_ticket(index, TicketWord::Previous, tail);
    let waiting = TicketState {
        serial,
        phase: Phase::Waiting,
    };
    line.store_ticket(index, TicketWord::State, waiting.to_word());
    match last {
        Some(last) => line.store_ticket(last, TicketWord::Next, index + 1),
        None => line.store_end(own_line, LineEnd::Head, index + 1),
    }
    line.store_end(own_line, LineEnd::Tail, index + 1);
    let length = line.load(TableWord::Length).saturating_add(1);
    line.store(TableWord::Length, length);
    if length > line.load(TableWord::LongestLength) {
        line.store(TableWord::LongestLength, length);
    }
    Ok(TicketReference { index, serial })
}

/// The ticket of `own_line` that is served next.
pub(crate) fn head(line: &(impl Line + ?Sized), own_line: u64) -> Result<Option<u64>, Damaged> {
    let Some(index) = line.load_end(own_line, LineEnd::Head).checked_sub(1) else {
        return Ok(None);
    };
    let is_first = index < line.capacity()
        && line.line_of(index) == own_line
        && state(line, index).phase == Phase::Waiting
        && line.load_ticket(index, TicketWord::Previous) == 0;
    if is_first { Ok(Some(index)) } else { Err(Damaged) }
}

/// The ticket before a waiting one.
pub(crate) fn predecessor(line: &(impl Line + ?Sized), index: u64) -> Option<u64> {
    line.load_ticket(index, TicketWord::Previous)
        .checked_sub(1)
        .filter(|before| *before < line.capacity() && state(line, *before).phase == Phase::Waiting)
}

/// The ticket behind a waiting one.
pub(crate) fn successor(line: &(impl Line + ?Sized), index: u64) -> Option<u64> {
    line.load_ticket(index, TicketWord::Next)
        .checked_sub(1)
        .filter(|behind| *behind < line.capacity() && state(line, *behind).phase == Phase::Waiting)
}

/// Takes a waiting ticket out of the line: it has been given what it asked for.
pub(crate) fn grant(line: &mut (impl LineMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let serial = unlink(line, index)?;
    let granted = TicketState {
        serial,
        phase: Phase::Granted,
    };
    line.store_ticket(index, TicketWord::State, granted.to_word());
    Ok(())
}

/// Takes a waiting ticket out of the line and frees it: its owner does not wait any longer.
pub(crate) fn leave(line: &mut (impl LineMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let serial = unlink(line, index)?;
    free(line, index, serial);
    Ok(())
}

/// Frees a granted ticket.
pub(crate) fn claim(line: &mut (impl LineMut + ?Sized), index: u64) -> Result<(), Damaged> {
    let TicketState { serial, phase } = state(line, index);
    if index >= line.capacity() || phase != Phase::Granted {
        return Err(Damaged);
    }
    free(line, index, serial);
    Ok(())
}

fn unlink(line: &mut (impl LineMut + ?Sized), index: u64) -> Result<u64, Damaged> {
    let TicketState { serial, phase } = state(line, index);
    if index >= line.capacity() || phase != Phase::Waiting {
        return Err(Damaged);
    }
    let this = index + 1;
    let own_line = line.line_of(index);
    let before = line.load_ticket(index, TicketWord::Previous);
    let behind = line.load_ticket(index, TicketWord::Next);
    let expected_before = match before.checked_sub(1) {
        Some(before) => line.load_ticket(before, TicketWord::Next),
        None => line.load_end(own_line, LineEnd::Head),
    };
    let expected_behind = match behind.checked_sub(1) {
        Some(behind) => line.load_ticket(behind, TicketWord::Previous),
        None => line.load_end(own_line, LineEnd::Tail),
    };
    if expected_before != this || expected_behind != this {
        return Err(Damaged);
    }
    match before.checked_sub(1) {
        Some(before) => line.store_ticket(before, TicketWord::Next, behind),
        None => line.store_end(own_line, LineEnd::Head, behind),
    }
    match behind.checked_sub(1) {
        Some(behind) => line.store_ticket(behind, TicketWord::Previous, before),
        None => line.store_end(own_line, LineEnd::Tail, before),
    }
    line.store(TableWord::Length, line.load(TableWord::Length).saturating_sub(1));
    Ok(serial)
}

fn free(line: &mut (impl LineMut + ?Sized), index: u64, serial: u64) {
    let free = TicketState {
        serial,
        phase: Phase::Free,
    };
    line.store_ticket(index, TicketWord::State, free.to_word());
    line.store_ticket(index, TicketWord::Owner, 0);
    line.store_ticket(index, TicketWord::Next, line.load(TableWord::Free));
    line.store(TableWord::Free, index + 1);
}

/// Tickets that were ever used.
fn touched(line: &(impl Line + ?Sized)) -> u64 {
    line.load(TableWord::Untouched).min(line.capacity())
}

/// Whether links and counts agree with the states. Bounded by the size of the table, whatever the links say.
pub(crate) fn is_consistent(line: &(impl Line + ?Sized)) -> bool {
    if line.load(TableWord::Untouched) > line.capacity() {
        return false;
    }
    let touched = touched(line);
    let count = |phase| {
        (0..touched)
            .filter(|index| state(line, *index).phase == phase)
            .count() as u64
    };
    let waiting = count(Phase::Waiting);
    let in_lines = (0..line.lines()).try_fold(0, |sum: u64, own_line| {
        let length = length_of_line(line, own_line, touched)?;
        // The lines share the table, so links that lead to more tickets than there are lead astray.
        sum.checked_add(length).filter(|sum| *sum <= touched)
    });
    line.load(TableWord::Length) == waiting
        && in_lines == Some(waiting)
        && length_of_free_list(line, touched) == Some(count(Phase::Free))
}

/// How many tickets the links of a line lead to; `None` where they lead astray.
fn length_of_line(line: &(impl Line + ?Sized), own_line: u64, touched: u64) -> Option<u64> {
    let mut length = 0;
    let mut before = 0;
    let mut serial = None;
    let mut next = line.load_end(own_line, LineEnd::Head);
    while let Some(index) = next.checked_sub(1) {
        let ticket = state(line, index);
        let is_in_order = serial.is_none_or(|serial| serial <= ticket.serial);
        length += 1;
        if index >= touched
            || length > touched
            || ticket.phase != Phase::Waiting
            || !is_in_order
            || line.line_of(index) != own_line
            || line.load_ticket(index, TicketWord::Previous) != before
        {
            return None;
        }
        serial = Some(ticket.serial);
        before = next;
        next = line.load_ticket(index, TicketWord::Next);
    }
    (line.load_end(own_line, LineEnd::Tail) == before).then_some(length)
}

fn length_of_free_list(line: &(impl Line + ?Sized), touched: u64) -> Option<u64> {
    let mut length = 0;
    let mut next = line.load(TableWord::Free);
    while let Some(index) = next.checked_sub(1) {
        length += 1;
        if index >= touched || length > touched || state(line, index).phase != Phase::Free {
            return None;
        }
        next = line.load_ticket(index, TicketWord::Next);
    }
    Some(length)
}

/// Makes links and counts again from the states of the tickets, in the order of their numbers. Can be repeated. A
/// ticket that waits in a line which does not exist is freed: its owner finds it gone and begins anew.
pub(crate) fn rebuild(line: &mut (impl LineMut + ?Sized)) {
    let capacity = line.capacity();
    let lines = line.lines();
    for index in 0..capacity {
        let TicketState { serial, phase } = state(line, index);
        if phase == Phase::Waiting && line.line_of(index) >= lines {
            let free = TicketState {
                serial,
                phase: Phase::Free,
            };
            line.store_ticket(index, TicketWord::State, free.to_word());
        }
    }
    let used = |index: &u64| state(line, *index).phase != Phase::Free;
    let touched = (0..capacity).rev().find(used).map_or(0, |last| last + 1);
    // This happens after a death or damage only; a line is rarely long, and nothing waits for memory that is short.
    let mut waiting: Vec<(u64, u64, u64)> = (0..touched)
        .map(|index| (state(line, index), index))
        .filter(|(ticket, _)| ticket.phase == Phase::Waiting)
        .map(|(ticket, index)| (line.line_of(index), ticket.serial, index))
        .collect();
    waiting.sort_unstable();
    let latest = (0..touched).map(|index| state(line, index).serial).max();
    line.store(TableWord::Untouched, touched);
    let mut first_free = 0;
    for index in (0..touched).rev() {
        let TicketState { serial, phase } = state(line, index);
        if phase == Phase::Free {
            let free = TicketState { serial, phase };
            line.store_ticket(index, TicketWord::State, free.to_word());
            line.store_ticket(index, TicketWord::Owner, 0);
            line.store_ticket(index, TicketWord::Next, first_free);
            first_free = index + 1;
        }
    }
    line.store(TableWord::Free, first_free);
    let mut groups = waiting.chunk_by(|one, other| one.0 == other.0).peekable();
    for own_line in 0..lines {
        let tickets = groups
            .next_if(|tickets| tickets.first().is_some_and(|(of, _, _)| *of == own_line))
            .unwrap_or_default();
        let mut before = 0;
        for (position, (_, _, index)) in tickets.iter().enumerate() {
            let next = tickets.get(position + 1).map_or(0, |(_, _, next)| next + 1);
            line.store_ticket(*index, TicketWord::Previous, before);
            line.store_ticket(*index, TicketWord::Next, next);
            before = index + 1;
        }
        let first = tickets.first().map_or(0, |(_, _, first)| first + 1);
        line.store_end(own_line, LineEnd::Head, first);
        line.store_end(own_line, LineEnd::Tail, before);
    }
    line.store(TableWord::Length, waiting.len() as u64);
    // New tickets must come after those that wait.
    if let Some(latest) = latest
        && latest > line.load(TableWord::Serial)
    {
        line.store(TableWord::Serial, latest);
    }
}
