//! One place of the table of holds, or of that of tickets.

use std::mem::offset_of;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use super::records::{Hold, Ticket, TicketLimit};
use super::row::RowReference;

/// The hold of one permit. The serial number, which is never zero, tells a later hold in the same place from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldReference {
    pub(crate) index: u64,
    pub(crate) serial: NonZeroU64,
}

/// One place of the table of holds.
#[derive(Clone, Copy)]
pub(crate) struct HoldPlace<'a> {
    pub(super) words: &'a [AtomicU64],
}

pub(super) const HOLD_WORDS: usize = size_of::<Hold>() / 8;

/// One place of the table of tickets.
#[derive(Clone, Copy)]
pub(crate) struct TicketPlace<'a> {
    pub(super) words: &'a [AtomicU64],
}

/// What a ticket says of one limit.
#[derive(Clone, Copy)]
pub(crate) struct TicketLimitPlace<'a> {
    words: &'a [AtomicU64],
}

pub(super) const TICKET_WORDS: usize = size_of::<Ticket>() / 8;
pub(super) const TICKET_LIMIT_WORDS: usize = size_of::<TicketLimit>() / 8;

/// Gives a place its words: for each field of its record a method, most of which have the field's name.
macro_rules! fields {
    ($place:ident of $record:ident { $($(#[$attribute:meta])* $name:ident: $field:ident,)+ }) => {
        impl<'a> $place<'a> {
            $(
                $(#[$attribute])*
                #[inline]
                pub(crate) fn $name(self) -> &'a AtomicU64 {
                    &self.words[offset_of!($record, $field) / 8]
                }
            )+
        }
    };
}

fields! {
    HoldPlace of Hold {
        /// Participant slot and generation, packed; zero where the place is free.
        owner: owner,
        serial: serial,
        /// On the segment clock.
        taken_at: taken_at,
        /// Of a free place: the next one, plus one.
        next_free: expired_or_next,
        /// On the segment clock: when the hold was taken or last renewed.
        renewed_at: renewed_at,
        /// Of a hold in use: bit i says that the lease of limit i ran out.
        expired: expired_or_next,
        /// The latest mark that was left here.
        returned: returned,
        /// The word of the [row](Self::row) whose limits are held.
        row_word: row,
    }
}

fields! {
    TicketPlace of Ticket {
        /// Participant slot and generation, packed; zero where the place is free or the ticket was given up.
        owner: owner,
        /// Number and phase, packed.
        state: state,
        waiter_futex: waiter_futex,
        next: next,
        previous: previous,
        /// On the segment clock.
        enqueued_at: enqueued_at,
        /// On the segment clock.
        granted_at: granted_at,
        /// The hold that was granted, plus one.
        hold: hold,
        hold_serial: hold_serial,
        /// The limits that are asked for, and the waiter futex.
        request: request,
    }
}

fields! {
    TicketLimitPlace of TicketLimit {
        cost: cost,
    }
}

impl<'a> HoldPlace<'a> {
    /// The row whose limits are held.
    #[inline]
    pub(crate) fn row(self) -> RowReference {
        RowReference::from_word(self.row_word().load(Ordering::Relaxed))
    }

    /// What is held of each limit that gives back.
    #[inline]
    pub(crate) fn amounts(self) -> &'a [AtomicU64] {
        &self.words[HOLD_WORDS..]
    }

    pub(crate) fn is_taken(self) -> bool {
        self.owner().load(Ordering::Relaxed) != 0
    }
}

impl<'a> TicketPlace<'a> {
    /// The row whose queue it is in, or whose limits it was granted.
    pub(crate) fn row(self) -> RowReference {
        RowReference::from_word(self.words[offset_of!(Ticket, row) / 8].load(Ordering::Relaxed))
    }

    pub(crate) fn set_row(self, row: RowReference) {
        self.words[offset_of!(Ticket, row) / 8].store(row.to_word(), Ordering::Relaxed);
    }

    /// What is asked of the limit at `index`; `None` where the set has none.
    pub(crate) fn limit(self, index: usize) -> Option<TicketLimitPlace<'a>> {
        let start = TICKET_WORDS + TICKET_LIMIT_WORDS * index;
        Some(TicketLimitPlace {
            words: self.words.get(start..start + TICKET_LIMIT_WORDS)?,
        })
    }
}

impl<'a> TicketLimitPlace<'a> {
    /// How the limit stood just after the grant, in two words.
    pub(crate) fn mark_words(self) -> [&'a AtomicU64; 2] {
        let first = offset_of!(TicketLimit, mark) / 8;
        [&self.words[first], &self.words[first + 1]]
    }
}
