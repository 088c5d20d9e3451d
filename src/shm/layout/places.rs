//! One place in the table of holds, or in that of tickets.

use std::mem::offset_of;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use super::records::{Hold, Ticket, TicketLimit};
use super::row::RowReference;

/// A permit's hold. The serial number, which is never zero, tells it from a later hold in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldReference {
    pub(crate) index: u64,
    pub(crate) serial: NonZeroU64,
}

/// One place in the table of holds.
#[derive(Clone, Copy)]
pub(crate) struct HoldPlace<'a> {
    pub(super) head: &'a Hold,
    pub(super) amounts: &'a [AtomicU64],
}

pub(super) const HOLD_WORDS: usize = size_of::<Hold>() / 8;

/// One place in the table of tickets.
#[derive(Clone, Copy)]
pub(crate) struct TicketPlace<'a> {
    pub(super) words: &'a [AtomicU64],
}

/// The part of a ticket about one limit.
#[derive(Clone, Copy)]
pub(crate) struct TicketLimitPlace<'a> {
    words: &'a [AtomicU64],
}

pub(super) const TICKET_WORDS: usize = size_of::<Ticket>() / 8;
pub(super) const TICKET_LIMIT_WORDS: usize = size_of::<TicketLimit>() / 8;

impl<'a> HoldPlace<'a> {
    /// Participant slot and generation, packed; zero if the place is free.
    #[inline]
    pub(crate) fn owner(self) -> &'a AtomicU64 {
        &self.head.owner
    }

    #[inline]
    pub(crate) fn serial(self) -> &'a AtomicU64 {
        &self.head.serial
    }

    /// On the segment clock.
    #[inline]
    pub(crate) fn taken_at(self) -> &'a AtomicU64 {
        &self.head.taken_at
    }

    /// In a free place: the next free one, plus one.
    #[inline]
    pub(crate) fn next_free(self) -> &'a AtomicU64 {
        &self.head.expired_or_next
    }

    /// When the hold was taken or last renewed, on the segment clock.
    #[inline]
    pub(crate) fn renewed_at(self) -> &'a AtomicU64 {
        &self.head.renewed_at
    }

    /// In a used place: bit i says that the lease of limit i has run out.
    #[inline]
    pub(crate) fn expired(self) -> &'a AtomicU64 {
        &self.head.expired_or_next
    }

    /// The latest mark left here.
    #[inline]
    pub(crate) fn returned(self) -> &'a AtomicU64 {
        &self.head.returned
    }

    /// The word of the [row](Self::row) whose limits are held.
    #[inline]
    pub(crate) fn row_word(self) -> &'a AtomicU64 {
        &self.head.row
    }

    /// The row whose limits are held.
    #[inline]
    pub(crate) fn row(self) -> RowReference {
        RowReference::from_word(self.row_word().load(Ordering::Relaxed))
    }

    /// The amount held of each limit that gives back.
    #[inline]
    pub(crate) fn amounts(self) -> &'a [AtomicU64] {
        self.amounts
    }

    pub(crate) fn is_taken(self) -> bool {
        self.owner().load(Ordering::Relaxed) != 0
    }
}

impl<'a> TicketPlace<'a> {
    /// Participant slot and generation, packed; zero if the place is free or the ticket was given up.
    pub(crate) fn owner(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, owner) / 8]
    }

    /// Number and phase, packed.
    pub(crate) fn state(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, state) / 8]
    }

    pub(crate) fn waiter_futex(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, waiter_futex) / 8]
    }

    pub(crate) fn next(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, next) / 8]
    }

    pub(crate) fn previous(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, previous) / 8]
    }

    /// On the segment clock.
    pub(crate) fn enqueued_at(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, enqueued_at) / 8]
    }

    /// On the segment clock.
    pub(crate) fn granted_at(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, granted_at) / 8]
    }

    /// From here on the ticket is not granted; on the segment clock.
    pub(crate) fn deadline(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, deadline) / 8]
    }

    /// When its owner last looked at it, on the segment clock.
    pub(crate) fn looked_at(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, looked_at) / 8]
    }

    /// The granted hold, plus one.
    pub(crate) fn hold(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, hold) / 8]
    }

    pub(crate) fn hold_serial(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, hold_serial) / 8]
    }

    /// Which limits are asked for, and which futex the owner waits on.
    pub(crate) fn request(self) -> &'a AtomicU64 {
        &self.words[offset_of!(Ticket, request) / 8]
    }

    /// The row in whose queue it is, or whose limits it was granted.
    pub(crate) fn row(self) -> RowReference {
        RowReference::from_word(self.words[offset_of!(Ticket, row) / 8].load(Ordering::Relaxed))
    }

    pub(crate) fn set_row(self, row: RowReference) {
        self.words[offset_of!(Ticket, row) / 8].store(row.to_word(), Ordering::Relaxed);
    }

    /// What is asked of the limit at `index`; `None` if the set has no such limit.
    pub(crate) fn limit(self, index: usize) -> Option<TicketLimitPlace<'a>> {
        let start = TICKET_WORDS + TICKET_LIMIT_WORDS * index;
        Some(TicketLimitPlace {
            words: self.words.get(start..start + TICKET_LIMIT_WORDS)?,
        })
    }
}

impl<'a> TicketLimitPlace<'a> {
    pub(crate) fn cost(self) -> &'a AtomicU64 {
        &self.words[offset_of!(TicketLimit, cost) / 8]
    }

    /// How the limit stood just after the grant, in two words.
    pub(crate) fn mark_words(self) -> [&'a AtomicU64; 2] {
        let first = offset_of!(TicketLimit, mark) / 8;
        [&self.words[first], &self.words[first + 1]]
    }
}
