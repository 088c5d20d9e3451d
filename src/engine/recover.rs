//! What is done when the previous owner of a lock died with it.
//!
//! Everything here can be repeated: any number of recoverers may die on the way, and the lock says so to the next.

use std::sync::atomic::Ordering;

use super::line::{LineWords, RepeatableLine};
use super::memory::HoldPlace;
use super::segment::SegmentEngine;
use super::set::Part;
use crate::error::Error;
use crate::queue;
use crate::shm::journal::JournalState;
use crate::shm::layout::SET_UNCHECKED;

/// The holds could not be counted: counting them again may help.
pub(crate) const POISONED_BY_COUNTS: u64 = 1;

/// The journal named words that no operation changes: what they were is lost, and only a reset helps.
pub(crate) const POISONED_BY_JOURNAL: u64 = 2;

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Repairs {
    /// The lock's owner had died.
    pub owner_died: bool,
    /// Words that a half-done operation had changed and that were put back.
    pub undone_words: usize,
    /// A reset that had been begun was carried to its end.
    pub finished_reset: bool,
    /// The counts did not agree with the holds and were counted again.
    pub recounted: bool,
    /// The set could not be repaired and is poisoned.
    pub poisoned: bool,
}

impl SegmentEngine {
    /// Sets right what a dead owner left. The caller holds the lock.
    #[cold]
    pub(crate) fn recover(&self, part: Part<'_>, owner_died: bool) -> Repairs {
        let control = part.memory.control();
        let journal = part.memory.journal();
        let mut repairs = Repairs {
            owner_died,
            ..Repairs::default()
        };
        let journal_is_sound = match journal.state() {
            JournalState::Idle => true,
            JournalState::Undo(count) => {
                repairs.undone_words = count;
                journal.undo(count)
            }
            JournalState::Reset => {
                repairs.finished_reset = true;
                part.carry_out_reset();
                true
            }
            JournalState::Recount => {
                repairs.recounted = true;
                self.recount(part);
                true
            }
            JournalState::Damaged(_) => false,
        };
        if !journal_is_sound {
            // Said before the journal is closed: whoever recovers after this recoverer's death finds it idle.
            control.poisoned.store(POISONED_BY_JOURNAL, Ordering::Relaxed);
        }
        if journal.state() != JournalState::Idle {
            journal.close();
        }
        if owner_died {
            control
                .last_recoverer
                .store(self.membership.owner_so_far(), Ordering::Relaxed);
            control.recoveries.store(
                control.recoveries.load(Ordering::Relaxed).saturating_add(1),
                Ordering::Relaxed,
            );
        }
        if !part.is_consistent() {
            repairs.recounted = true;
            self.recount(part);
        }
        // What the journal lost is not to be forgotten over counts that can be made again.
        let poisoned = &control.poisoned;
        match (poisoned.load(Ordering::Relaxed), part.is_consistent()) {
            (0 | SET_UNCHECKED, false) => poisoned.store(POISONED_BY_COUNTS, Ordering::Relaxed),
            (SET_UNCHECKED, true) => poisoned.store(0, Ordering::Relaxed),
            _ => {}
        }
        repairs.poisoned = poisoned.load(Ordering::Relaxed) != 0;
        repairs
    }

    /// Recovers a set now: its lock, its counts, and what the dead hold. Answers what was repaired under the lock
    /// and how many holds were given back.
    pub(crate) fn repair(&self, part: Part<'_>) -> Result<(Option<Repairs>, u64), Box<Error>> {
        let (mut locked, mut repairs) = self.lock_and_report(part)?;
        let poisoned = &part.memory.control().poisoned;
        if !part.is_consistent() {
            self.recount(part);
            repairs.get_or_insert_default().recounted = true;
        }
        if poisoned.load(Ordering::Relaxed) == POISONED_BY_COUNTS && part.is_consistent() {
            poisoned.store(0, Ordering::Relaxed);
        }
        if poisoned.load(Ordering::Relaxed) != 0 {
            repairs.get_or_insert_default().poisoned = true;
            return Ok((repairs, 0));
        }
        locked.serve_next()?;
        drop(locked);
        Ok((repairs, self.reclaim(part)?))
    }

    /// Counts everything that follows from holds and tickets again: what is in use, how many are active, which are
    /// free, who waits behind whom.
    /// The caller holds the lock.
    #[cold]
    pub(crate) fn recount(&self, part: Part<'_>) {
        let memory = &part.memory;
        let control = memory.control();
        memory.journal().mark_recount();
        // The mark of the first untouched hold is damaged if it lies beyond the table, or before a hold in use.
        let is_taken = |index: &u64| memory.hold(*index).is_some_and(HoldPlace::is_taken);
        let touched = (0..memory.hold_capacity())
            .rev()
            .find(is_taken)
            .map_or(0, |last| last + 1);
        control.untouched_hold.store(touched, Ordering::Relaxed);
        let mut active = 0_u64;
        let mut first_free = 0;
        for index in (0..touched).rev() {
            let Some(hold) = memory.hold(index) else {
                continue;
            };
            if hold.is_taken() {
                active += 1;
                continue;
            }
            for amount in hold.amounts() {
                amount.store(0, Ordering::Relaxed);
            }
            hold.next_free().store(first_free, Ordering::Relaxed);
            first_free = index + 1;
        }
        control.free_hold.store(first_free, Ordering::Relaxed);
        queue::rebuild(&mut RepeatableLine(memory));
        control.active.store(active, Ordering::Relaxed);
        for (position, limit) in part.held_limits().enumerate() {
            if let Some(in_use) = limit.in_use() {
                in_use.store(part.held(position), Ordering::Relaxed);
            }
        }
        control.recounts.store(
            control.recounts.load(Ordering::Relaxed).saturating_add(1),
            Ordering::Relaxed,
        );
        memory.journal().close();
    }
}

impl Part<'_> {
    fn taken_holds(&self, touched: u64) -> impl Iterator<Item = HoldPlace<'_>> {
        (0..touched)
            .filter_map(|index| self.memory.hold(index))
            .filter(|hold| hold.is_taken())
    }

    /// What all holds together hold of the limit at `position` of their amounts.
    fn held(&self, position: usize) -> u64 {
        self.taken_holds(self.memory.touched_holds())
            .filter_map(|hold| hold.amounts().get(position))
            .fold(0, |sum, amount| {
                sum.saturating_add(amount.load(Ordering::Relaxed))
            })
    }

    /// Whether the counts agree with the holds. Bounded by the size of the table, whatever the links say.
    pub(crate) fn is_consistent(&self) -> bool {
        let control = self.memory.control();
        let touched = control.untouched_hold.load(Ordering::Relaxed);
        if touched > self.memory.hold_capacity() {
            return false;
        }
        let taken = self.taken_holds(touched).count() as u64;
        if control.active.load(Ordering::Relaxed) != taken {
            return false;
        }
        let mut free = 0;
        let mut next = control.free_hold.load(Ordering::Relaxed);
        while let Some(index) = next.checked_sub(1) {
            let Some(hold) = self.memory.hold(index) else {
                return false;
            };
            free += 1;
            if index >= touched || free > touched || hold.is_taken() {
                return false;
            }
            next = hold.next_free().load(Ordering::Relaxed);
        }
        let counts_agree = self.held_limits().enumerate().all(|(position, limit)| {
            limit
                .in_use()
                .is_none_or(|in_use| in_use.load(Ordering::Relaxed) == self.held(position))
        });
        taken + free == touched && counts_agree && queue::is_consistent(&LineWords(&self.memory))
    }
}
