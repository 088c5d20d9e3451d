//! Looking at a set without its lock: a copy that is consistent, or says that it is not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::segment::SetEngine;
use crate::limit::Now;
use crate::queue::{Phase, TicketState};
use crate::shm::journal::JournalState;
use crate::shm::region::{OutOfRegion, Region};
use crate::shm::robust_mutex::LockWord;

/// Copies that are tried before one is taken as it is.
const ATTEMPTS: usize = 100;

/// A copy of a set, in private memory of the same layout.
#[derive(Debug)]
pub(crate) struct SetObservation {
    pub(crate) copy: SetEngine,
    /// The set changed during every attempt: the parts may not belong together.
    pub(crate) torn: bool,
    pub(crate) lock: LockWord,
}

/// Copies a set. Never locks, never writes to `region`.
pub(crate) fn observe(region: &Region, part: Part<'_>) -> io::Result<SetObservation> {
    let target = Arc::new(Region::private(region.size())?);
    let lock = part.memory.control().lock.word();
    let torn = !(0..ATTEMPTS).any(|_| copy_consistently(region, &target, part).unwrap_or(false));
    if torn {
        fence(Ordering::Acquire);
        copy_set(region, &target, part).map_err(outside)?;
    }
    let copy = SetEngine::new(&target, part.geometry, part.plan.clone()).map_err(outside)?;
    Ok(SetObservation { copy, torn, lock })
}

impl SetObservation {
    /// How many words an operation that has not come to an end has changed; `None` where a reset or a recount is
    /// under way or the journal is damaged.
    pub(crate) fn words_in_flight(&self) -> Option<usize> {
        match self.copy.memory.journal().state() {
            JournalState::Idle => Some(0),
            JournalState::Undo(count) => Some(count),
            JournalState::Reset | JournalState::Recount | JournalState::Damaged(_) => None,
        }
    }

    /// An instant for looking at the copy: never before its latest change.
    pub(crate) fn instant(&self, now: Now) -> Now {
        let last_seen = self.copy.memory.control().last_seen.load(Ordering::Relaxed);
        Now {
            monotonic: now.monotonic.max(last_seen),
            ..now
        }
    }

    /// The holds in use.
    pub(crate) fn holds(&self) -> Vec<ObservedHold> {
        let memory = &self.copy.memory;
        (0..memory.touched_holds())
            .filter_map(|index| Some((index, memory.hold(index)?)))
            .filter(|(_, hold)| hold.is_taken())
            .map(|(index, hold)| ObservedHold {
                index,
                owner: hold.owner().load(Ordering::Relaxed),
                serial: hold.serial().load(Ordering::Relaxed),
                taken_at: hold.taken_at().load(Ordering::Relaxed),
                amounts: self
                    .copy
                    .held_indexes
                    .iter()
                    .zip(hold.amounts())
                    .map(|(limit, amount)| (*limit, amount.load(Ordering::Relaxed)))
                    .collect(),
            })
            .collect()
    }
}

impl SetObservation {
    /// The tickets in use, in the order in which they came.
    pub(crate) fn tickets(&self) -> Vec<ObservedTicket> {
        let memory = &self.copy.memory;
        let mut tickets: Vec<ObservedTicket> = (0..memory.touched_tickets())
            .filter_map(|index| Some((index, memory.ticket(index)?)))
            .filter_map(|(index, ticket)| {
                let state = TicketState::from_word(ticket.state().load(Ordering::Relaxed));
                (state.phase != Phase::Free).then(|| ObservedTicket {
                    index,
                    number: state.serial,
                    owner: ticket.owner().load(Ordering::Relaxed),
                    is_granted: state.phase == Phase::Granted,
                    enqueued_at: ticket.enqueued_at().load(Ordering::Relaxed),
                    costs: self.copy.costs_of(ticket).iter().collect(),
                })
            })
            .collect();
        tickets.sort_unstable_by_key(|ticket| ticket.number);
        tickets
    }
}

/// A hold that is in use, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedHold {
    pub(crate) index: u64,
    pub(crate) owner: u64,
    pub(crate) serial: u64,
    pub(crate) taken_at: u64,
    /// What is held of each limit that gives back.
    pub(crate) amounts: Vec<(usize, u64)>,
}

/// A ticket that is in use, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedTicket {
    pub(crate) index: u64,
    pub(crate) number: u64,
    pub(crate) owner: u64,
    pub(crate) is_granted: bool,
    pub(crate) enqueued_at: u64,
    /// What it asks of each limit.
    pub(crate) costs: Vec<(usize, u64)>,
}

/// Copies the set and answers whether nothing changed meanwhile.
fn copy_consistently(region: &Region, target: &Region, part: Part<'_>) -> Result<bool, OutOfRegion> {
    let journal = part.memory.journal();
    let Some(sequence) = journal.sequence_if_idle() else {
        std::hint::spin_loop();
        return Ok(false);
    };
    copy_set(region, target, part)?;
    Ok(journal.unchanged_since(sequence))
}

/// Copies the words of a set: from its control to the last hold that was ever touched, and the tickets that were.
fn copy_set(region: &Region, target: &Region, part: Part<'_>) -> Result<(), OutOfRegion> {
    let geometry = &part.geometry;
    let touched = part.memory.touched_holds();
    let size = geometry.holds_offset + touched * geometry.hold_stride - geometry.control_offset;
    copy_words(region, target, geometry.control_offset, size)?;
    let size = part.memory.touched_tickets() * geometry.ticket_stride;
    copy_words(region, target, geometry.tickets_offset, size)
}

fn copy_words(region: &Region, target: &Region, offset: u64, size: u64) -> Result<(), OutOfRegion> {
    let from = region.words(offset, size / 8)?;
    let to = target.words(offset, size / 8)?;
    for (source, copy) in from.iter().zip(to) {
        copy.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Ok(())
}

fn outside(place: OutOfRegion) -> io::Error {
    io::Error::other(format!(
        "{} bytes at {} lie outside the segment",
        place.size, place.offset
    ))
}
