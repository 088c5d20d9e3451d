//! What dead processes hold, for looks: it is left out of what a look answers, and stays where it is until the next
//! request that needs it takes it back.
//!
//! What a look answers is worked out on a copy of the row, to which the same is given back as by a reclaim.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::definition::plan::Kind;
use crate::engine::lease::reclaim_places::{LOOKS, UnleasedHold};
use crate::engine::shard::set_engine::{RuledShard, ShardAt};
use crate::queue::{Phase, TicketState};
use crate::shm::layout::places::{HoldPlace, TicketPlace};
use crate::shm::layout::records::{JOURNAL_ENTRIES, JournalEntry, MAX_LIMITS};
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::{Journal, Transaction};

/// Units of each limit of a set that a look leaves out.
pub(crate) type OfDead = [u64; MAX_LIMITS];

/// The holds and granted tickets of a shard that a reclaim would take back: their owners are dead, or have given them
/// back without the lock, or a lease of them or of their host has run out.
#[derive(Debug)]
pub(crate) struct DeadHolds {
    owners: HashSet<u64>,
    /// By their index.
    unleased: Vec<UnleasedHold>,
    /// Each with its row before its index, in this order.
    holds: Vec<(u64, u64)>,
    tickets: Vec<(u64, u64)>,
}

/// Room for a copy of the state of one row, and for the changes of it.
#[derive(Debug)]
pub(crate) struct RowCopy {
    /// The word of a journal of its own, then the state.
    words: Vec<AtomicU64>,
    entries: Vec<JournalEntry>,
}

/// A row as it would be after a reclaim.
#[derive(Debug)]
pub(crate) struct LeftOut<'a> {
    pub(crate) row: Row<'a>,
    /// Units given back.
    pub(crate) of_dead: OfDead,
    /// Holds of which nothing would be left.
    pub(crate) holds: u64,
    /// Granted tickets that would be taken back.
    pub(crate) tickets: u64,
}

impl DeadHolds {
    /// Asks `is_alive` once of each owner. Takes no lock.
    pub(crate) fn find(at: ShardAt<'_>, is_alive: impl Fn(u64) -> bool) -> Self {
        let mut owners = at.shard.owners();
        owners.retain(|owner| !is_alive(*owner));
        let mut dead = Self {
            owners,
            unleased: Vec::new(),
            holds: Vec::new(),
            tickets: Vec::new(),
        };
        let memory = at.shard.memory;
        // In the middle of a renewal it would look as if nothing were leased; then nothing is left out.
        let unleased = || at.shard.unleased_holds(at.now, |hold| dead.is_dead(hold));
        dead.unleased = at.shard.read_consistently(LOOKS, unleased).unwrap_or_default();
        dead.unleased.sort_unstable_by_key(|hold| hold.index);
        for index in 0..memory.touched_holds() {
            if let Some(hold) = memory
                .hold(index)
                .filter(|hold| dead.has_part_in(at, index, *hold))
            {
                dead.holds.push((hold.row().index, index));
            }
        }
        for index in 0..memory.touched_tickets() {
            if let Some(ticket) = memory.ticket(index).filter(|ticket| dead.was_granted(*ticket)) {
                dead.tickets.push((ticket.row().index, index));
            }
        }
        dead.holds.sort_unstable();
        dead.tickets.sort_unstable();
        dead
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.tickets.is_empty()
    }

    /// As [`leave_out`](Self::leave_out) of all rows together, of which only what is held of concurrency is counted.
    pub(crate) fn of_all_rows<'a>(&self, at: ShardAt<'_>, copy: &'a RowCopy) -> LeftOut<'a> {
        let mut left_out = LeftOut::nothing_of(Row::ABSENT);
        let Some((journal, _)) = journal_and_state(&copy.words, &copy.entries) else {
            return left_out;
        };
        for hold in self
            .holds
            .iter()
            .filter_map(|(_, index)| at.shard.memory.hold(*index))
        {
            left_out.give_back(at, hold, (self.is_dead(hold), 0), false, journal);
        }
        left_out
    }

    /// The row, as it would be if what dead processes hold of it had been given back.
    ///
    /// Does not allocate, and looks at each hold again: it may have been given back since it was found.
    pub(crate) fn leave_out<'a>(&self, at: ShardAt<'_>, row: Row<'a>, copy: &'a mut RowCopy) -> LeftOut<'a> {
        let mut left_out = LeftOut::nothing_of(row);
        let (holds, tickets) = (of_row(&self.holds, row.index), of_row(&self.tickets, row.index));
        if holds.is_empty() && tickets.is_empty() {
            return left_out;
        }
        let RowCopy { words, entries } = copy;
        let Some((journal, state)) = journal_and_state(words, entries) else {
            return left_out;
        };
        row.copy_state(state);
        left_out.row = row.with_state(state);
        for (_, index) in tickets {
            let ticket = at.shard.memory.ticket(*index);
            if let Some(ticket) =
                ticket.filter(|ticket| self.was_granted(*ticket) && ticket.row().index == row.index)
            {
                left_out.undo_grant(at, ticket, journal);
            }
        }
        for (_, index) in holds {
            let hold = at.shard.memory.hold(*index);
            if let Some(hold) =
                hold.filter(|hold| self.has_part_in(at, *index, *hold) && hold.row().index == row.index)
            {
                let is_dead = self.is_dead(hold);
                left_out.give_back(at, hold, (is_dead, self.unleased_of(*index)), is_dead, journal);
            }
        }
        left_out
    }

    /// Of which limits the places of the hold at `index` are not leased, as a bit mask.
    fn unleased_of(&self, index: u64) -> u32 {
        let found = self.unleased.binary_search_by_key(&index, |hold| hold.index);
        let found = found.ok().and_then(|position| self.unleased.get(position));
        found.map_or(0, |hold| hold.limits)
    }

    /// Whether all of the hold is free: its owner is dead, or gave it back.
    fn is_dead(&self, hold: HoldPlace<'_>) -> bool {
        self.owners.contains(&hold.owner().load(Ordering::Relaxed)) || hold.mark().is_some()
    }

    /// Whether a reclaim would give anything of the hold back.
    fn has_part_in(&self, at: ShardAt<'_>, index: u64, hold: HoldPlace<'_>) -> bool {
        hold.is_taken()
            && (self.is_dead(hold)
                || self.unleased_of(index) != 0
                || at
                    .shard
                    .expiry_of_hold(hold)
                    .is_some_and(|expiry| expiry <= at.now.monotonic))
    }

    /// Whether it was granted to a process that is dead now, or that gave it up.
    fn was_granted(&self, ticket: TicketPlace<'_>) -> bool {
        let state = TicketState::from_word(ticket.state().load(Ordering::Relaxed));
        state.phase == Phase::Granted && self.owners.contains(&ticket.owner().load(Ordering::Relaxed))
    }
}

impl RowCopy {
    /// For a row of the shard, whatever of it `dead` holds.
    pub(crate) fn new(shard: RuledShard<'_>, dead: &DeadHolds) -> Self {
        let entry = || JournalEntry {
            index: AtomicU64::new(0),
            old: AtomicU64::new(0),
        };
        let (words, entries) = if dead.is_empty() {
            (0, 0)
        } else {
            (1 + shard.memory.state_words(), JOURNAL_ENTRIES)
        };
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            entries: (0..entries).map(|_| entry()).collect(),
        }
    }
}

impl<'a> LeftOut<'a> {
    fn nothing_of(row: Row<'a>) -> Self {
        Self {
            row,
            of_dead: [0; MAX_LIMITS],
            holds: 0,
            tickets: 0,
        }
    }

    fn undo_grant(&mut self, at: ShardAt<'_>, ticket: TicketPlace<'_>, journal: Journal<'_>) {
        let mut transaction = journal.begin();
        let row = self.row;
        at.refund_grant(&mut transaction, row, ticket, |_, limit, refunded| {
            self.add(limit, refunded);
        });
        self.tickets += 1;
        commit(&mut transaction);
    }

    /// Gives back what is held of concurrency, all of it, or where the lease has run out or the limit is among those in the
    /// mask; and a batch of credit where `refunds`.
    fn give_back(
        &mut self,
        at: ShardAt<'_>,
        hold: HoldPlace<'_>,
        (is_dead, unleased): (bool, u32),
        refunds: bool,
        journal: Journal<'_>,
    ) {
        let mut transaction = journal.begin();
        let counts_from = at.shard.leases_count_from(hold);
        let mut is_empty = true;
        for (word, limit) in hold
            .amounts()
            .iter()
            .zip(at.shard.of(self.row).rules.held_limits())
        {
            let amount = limit.held(word.load(Ordering::Relaxed));
            let is_over = limit.has_expired(counts_from, at.now) || unleased & 1 << limit.index != 0;
            if limit.kind == Kind::Concurrency && (is_dead || is_over) {
                limit.give_back(self.row, &mut transaction, amount);
                self.add(limit, amount);
            } else if refunds {
                let own = limit.of(self.row);
                let refunded = at.refund_drawn(&mut transaction, &own, self.row, amount, hold.origin());
                self.add(limit, refunded);
            } else {
                is_empty &= amount == 0;
            }
        }
        self.holds += u64::from(is_dead || is_empty);
        commit(&mut transaction);
    }

    fn add(&mut self, limit: &LimitRules, units: u64) {
        if let Some(sum) = self.of_dead.get_mut(limit.index) {
            *sum = sum.saturating_add(units);
        }
    }
}

/// The journal of a copy, and the copy of the state.
fn journal_and_state<'a>(
    words: &'a [AtomicU64],
    entries: &'a [JournalEntry],
) -> Option<(Journal<'a>, &'a [AtomicU64])> {
    let (journal, state) = words.split_first()?;
    Some((Journal::new(journal, entries, words), state))
}

/// Those of one row, of what is in the order of the rows.
fn of_row(all: &[(u64, u64)], row: u64) -> &[(u64, u64)] {
    let start = all.partition_point(|(of, _)| *of < row);
    let end = all.partition_point(|(of, _)| *of <= row);
    all.get(start..end).unwrap_or_default()
}

/// Makes the changes of a copy final: it is private, and nothing in it can be damaged.
fn commit(transaction: &mut Transaction<'_>) {
    let outcome = transaction.commit();
    debug_assert_eq!(outcome, Ok(()));
}
