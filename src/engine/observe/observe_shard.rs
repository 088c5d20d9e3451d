//! Looks at a shard without its lock: makes a copy that is consistent, or says that it is not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::engine::rules::set_rules::SetRules;
use crate::engine::shard::order_words::OrderWords;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
use crate::limit::Now;
use crate::order;
use crate::queue::{Phase, TicketState};
use crate::shm::file::region::{OutOfRegion, Region};
use crate::shm::layout::geometry::ShardGeometry;
use crate::shm::layout::records::{HoldLabel, LockArea};
use crate::shm::layout::shard_memory::ShardMemory;
use crate::shm::lock::journal::JournalState;
use crate::sorting::sort_by;

/// How many attempts to make before a torn copy is accepted.
const ATTEMPTS: usize = 100;

/// A copy of a shard, in private memory of the same layout.
#[derive(Debug)]
pub(crate) struct ShardObservation<'a> {
    set: &'a SetEngine,
    memory: ShardMemory,
    rules: &'a SetRules,
    /// Whether the shard changed during every attempt, so that its pieces may not belong together.
    pub(crate) torn: bool,
}

/// Copies a shard. Never locks, never writes to `region`.
pub(crate) fn observe_shard<'a>(region: &Region, shard: Shard<'a>) -> io::Result<ShardObservation<'a>> {
    let target = Arc::new(Region::private(shard.memory.geometry.extent_size)?);
    let torn = !(0..ATTEMPTS).any(|_| copy_consistently(region, &target, shard).unwrap_or(false));
    if torn {
        fence(Ordering::Acquire);
        copy_shard(region, &target, shard).map_err(outside)?;
    }
    let memory = ShardMemory::locate(
        &target,
        &shard.memory.geometry.moved_to_the_start(),
        shard.index(),
    )
    .map_err(outside)?;
    Ok(ShardObservation {
        set: shard.set,
        rules: shard.by_its_definition().rules,
        memory,
        torn,
    })
}

impl ShardObservation<'_> {
    /// The copy.
    pub(crate) fn shard(&self) -> RuledShard<'_> {
        Shard {
            set: self.set,
            rules: self.rules,
            memory: &self.memory,
        }
    }

    /// How many words an unfinished operation has changed; `None` if a reset or a rebuild is under way, or the journal
    /// is damaged.
    pub(crate) fn words_in_flight(&self) -> Option<usize> {
        match self.memory.journal().state() {
            JournalState::Idle => Some(0),
            JournalState::Undo(count) => Some(count),
            JournalState::Change => Some(1),
            JournalState::Reset | JournalState::Rebuild | JournalState::Damaged(_) => None,
        }
    }

    /// The copy at an instant that is never before its latest change.
    pub(crate) fn at(&self, now: Now) -> ShardAt<'_> {
        let shard = self.shard();
        ShardAt {
            shard,
            now: shard.instant(now),
        }
    }

    /// The holds in use.
    pub(crate) fn holds(&self) -> Vec<ObservedHold> {
        let memory = &self.memory;
        (0..memory.touched_holds())
            .filter_map(|index| Some((index, memory.hold(index)?)))
            .filter(|(_, hold)| hold.is_taken())
            .map(|(index, hold)| ObservedHold {
                index,
                owner: hold.owner().load(Ordering::Relaxed),
                row: hold.row().index,
                serial: hold.serial().load(Ordering::Relaxed),
                label: memory
                    .label(index)
                    .and_then(|label| label.read(hold.serial().load(Ordering::Relaxed))),
                taken_at: hold.taken_at().load(Ordering::Relaxed),
                expires_at: self.shard().expiry_of_hold(hold),
                is_returned: hold.mark().is_some(),
                amounts: self
                    .rules
                    .held_limits()
                    .zip(hold.amounts())
                    .map(|(limit, amount)| (limit.index, limit.held(amount.load(Ordering::Relaxed))))
                    .collect(),
            })
            .collect()
    }
}

impl ShardObservation<'_> {
    /// The tickets in use, in the order of arrival.
    pub(crate) fn tickets(&self) -> Vec<ObservedTicket> {
        let memory = &self.memory;
        let mut tickets: Vec<ObservedTicket> = (0..memory.touched_tickets())
            .filter_map(|index| Some((index, memory.ticket(index)?)))
            .filter_map(|(index, ticket)| {
                let state = TicketState::from_word(ticket.state().load(Ordering::Relaxed));
                (state.phase != Phase::Free).then(|| ObservedTicket {
                    index,
                    number: state.serial,
                    owner: ticket.owner().load(Ordering::Relaxed),
                    row: ticket.row().index,
                    in_order: order::standing(&OrderWords::of(memory), ticket.row().index),
                    is_granted: state.phase == Phase::Granted,
                    is_passed_over: state.phase == Phase::PassedOver,
                    enqueued_at: ticket.enqueued_at().load(Ordering::Relaxed),
                    costs: self.shard().costs_of(ticket).iter().collect(),
                })
            })
            .collect();
        sort_by(&mut tickets, |one, other| one.number < other.number);
        tickets
    }
}

/// A hold in use, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedHold {
    pub(crate) index: u64,
    pub(crate) owner: u64,
    pub(crate) row: u64,
    pub(crate) serial: u64,
    /// The label of its request.
    pub(crate) label: Option<String>,
    pub(crate) taken_at: u64,
    /// When the first of its leases expires, on the segment clock.
    pub(crate) expires_at: Option<u64>,
    /// Whether it was given back without the lock, and nobody has finished that yet.
    pub(crate) is_returned: bool,
    /// How much it holds of each limit, for limits to which something comes back.
    pub(crate) amounts: Vec<(usize, u64)>,
}

/// A ticket in use, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedTicket {
    pub(crate) index: u64,
    pub(crate) number: u64,
    pub(crate) owner: u64,
    pub(crate) row: u64,
    /// How its key stands in the order among keys, if it is in it.
    pub(crate) in_order: Option<order::Standing>,
    pub(crate) is_granted: bool,
    pub(crate) is_passed_over: bool,
    pub(crate) enqueued_at: u64,
    /// What it asks of each limit.
    pub(crate) costs: Vec<(usize, u64)>,
}

/// Copies the shard, and returns whether nothing changed in the meantime.
fn copy_consistently(region: &Region, target: &Region, shard: Shard<'_>) -> Result<bool, OutOfRegion> {
    let journal = shard.memory.journal();
    let Some(sequence) = journal.sequence_if_idle() else {
        std::hint::spin_loop();
        return Ok(false);
    };
    copy_shard(region, target, shard)?;
    Ok(journal.unchanged_since(sequence))
}

/// Copies the words of a shard that follow its lock: the row, and the holds and tickets that were ever used. The rows
/// of a keyed set are too many to copy at one instant: only the names of those that a hold or a ticket refers to are
/// copied. What the shard itself knows of a store is copied, too.
fn copy_shard(region: &Region, target: &Region, shard: Shard<'_>) -> Result<(), OutOfRegion> {
    let geometry = &shard.memory.geometry;
    let copy = |offset, size| copy_words(region, target, geometry, offset, size);
    // The lock is not copied: a copy of it would mean nothing.
    let start = geometry.control_offset + size_of::<LockArea>() as u64;
    let size = shard.memory.touched_holds() * geometry.hold_stride;
    copy(geometry.holds_offset, size)?;
    copy_labels(region, target, shard)?;
    let size = shard.memory.touched_tickets() * geometry.ticket_stride;
    copy(geometry.tickets_offset, size)?;
    if !shard.memory.is_keyed() {
        return copy(start, geometry.names_offset - start);
    }
    copy(start, geometry.rows_offset - start)?;
    copy(
        geometry.leases_offset,
        geometry.holds_offset - geometry.leases_offset,
    )?;
    for row in named_rows(shard).filter(|row| *row < geometry.rows) {
        copy(
            geometry.rows_offset + row * geometry.row_stride,
            geometry.row_head,
        )?;
        let (order, size) = geometry.row_order(row);
        copy(order, size)?;
        let name_size = 8 * geometry.shape.name_words;
        copy(geometry.names_offset + row * name_size, name_size)?;
    }
    Ok(())
}

/// Copies the labels of holds, each by itself, because they are written outside of transactions.
fn copy_labels(region: &Region, target: &Region, shard: Shard<'_>) -> Result<(), OutOfRegion> {
    let geometry = &shard.memory.geometry;
    let count = shard.memory.touched_holds().min(geometry.shape.labels);
    let from: &[HoldLabel] = region.records(geometry.labels_offset, count)?;
    let to: &[HoldLabel] = target.records(geometry.labels_offset - geometry.extent_offset, count)?;
    for (label, copy) in from.iter().zip(to) {
        label.copy_to(copy);
    }
    Ok(())
}

/// The rows that holds and tickets refer to.
fn named_rows(shard: Shard<'_>) -> impl Iterator<Item = u64> {
    let memory = shard.memory;
    let holds = (0..memory.touched_holds())
        .filter_map(|index| memory.hold(index))
        .filter(|hold| hold.is_taken())
        .map(|hold| hold.row());
    let tickets = (0..memory.touched_tickets())
        .filter_map(|index| memory.ticket(index))
        .filter(|ticket| TicketState::from_word(ticket.state().load(Ordering::Relaxed)).phase != Phase::Free)
        .map(|ticket| ticket.row());
    holds.chain(tickets).map(|row| row.index)
}

fn copy_words(
    region: &Region,
    target: &Region,
    geometry: &ShardGeometry,
    offset: u64,
    size: u64,
) -> Result<(), OutOfRegion> {
    let from = region.words(offset, size / 8)?;
    let to = target.words(offset - geometry.extent_offset, size / 8)?;
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
