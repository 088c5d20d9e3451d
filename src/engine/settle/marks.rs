//! Giving back without the lock. A process that cannot get the lock leaves a mark on what it held, and sets a flag next
//! to the lock. Whoever holds the lock next finishes the work.
//!
//! The mark on a hold is a number that only grows: twice the serial number of the permit, plus one if the work failed.
//! So it means nothing to a later permit in the same place. It is not journalled, so undoing another operation does not
//! erase it. A ticket is marked by having no owner.
//!
//! Nobody searches for marks unless the flag is set, yet none is forgotten: whoever leaves one sets the flag and then
//! tries the lock, and whoever holds the lock releases it and then checks the flag. This also holds on processors that
//! reorder such steps: `src/weak_memory/mark_order.rs` explores the orders and must change together with this file.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use crate::engine::settle::settlement::Released;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard, NOTHING_MORE};
use crate::engine::shard::queue_words::QueueWords;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::queue::{self, Phase};
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::shard_memory::ShardMemory;

/// The flag in the word `marks`: something was marked since the present search, if any, began. The other bits count the
/// places left to search. Holds are numbered first and tickets after them, and the search goes from the last one down.
const MARKED: u64 = 1;

/// The most places that are searched each time the lock is held.
const SEARCHED_AT_ONCE: u64 = 64;

/// Orders an atomic change before what follows. Of two threads that both do this, at least one sees the other's change.
#[inline(always)]
fn fence_after_change() {
    if cfg!(target_arch = "x86_64") {
        // No later load overtakes an atomic change on x86, so only the compiler has to be restrained.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

impl HoldPlace<'_> {
    /// Whether the work had failed, if the permit gave this hold back without the lock; `None` if it did not.
    pub(crate) fn mark(self) -> Option<bool> {
        let mark = self.returned().load(Ordering::Relaxed);
        let is_marked = self.is_taken() && mark >> 1 == self.serial().load(Ordering::Relaxed);
        is_marked.then_some(mark & 1 != 0)
    }
}

impl ShardMemory {
    /// Sets the flag, so that everything is searched for marks.
    pub(in crate::engine) fn search_for_marks(&self) {
        self.control().marks.fetch_or(MARKED, Ordering::SeqCst);
    }
}

impl<Rules> Shard<'_, Rules> {
    /// Whether there may be marks.
    #[inline(always)]
    pub(in crate::engine) fn has_marks(&self) -> bool {
        self.memory.control().marks.load(Ordering::Relaxed) != 0
    }

    /// Whether there may be marks, for a thread that has just released the lock: either it sees that another thread set
    /// the flag, or that thread sees the lock free.
    #[inline(always)]
    pub(in crate::engine) fn was_marked_meanwhile(&self) -> bool {
        fence_after_change();
        self.has_marks()
    }
}

impl SegmentEngine {
    /// Gives a hold back by leaving a mark, and finishes the release at once if the lock is free.
    #[cold]
    pub(crate) fn release_by_mark(
        &self,
        shard: Shard<'_>,
        hold: HoldReference,
        owner: u64,
        failed: bool,
    ) -> Released {
        let is_whole = !self.is_lost(shard, hold, owner);
        let Some(place) = shard.place_of(hold, owner) else {
            return Released::WasReclaimed;
        };
        // If the hold is taken by another permit in the meantime, its serial number is larger.
        let mark = 2 * hold.serial.get() + u64::from(failed);
        place.returned().fetch_max(mark, Ordering::SeqCst);
        self.finish_or_leave_marks(shard);
        if is_whole {
            Released::GivenBack
        } else {
            Released::WasReclaimed
        }
    }

    /// Sets the flag after a mark was left. Finishes the work if the lock is free, and otherwise leaves it to whoever
    /// holds the lock.
    pub(in crate::engine) fn finish_or_leave_marks(&self, shard: Shard<'_>) {
        shard.memory.search_for_marks();
        fence_after_change();
        self.finish_marks(shard);
    }

    /// Finishes what was marked while this process held the lock, which it has just released. Does nothing if
    /// `deadline` is [`NOTHING_MORE`].
    #[inline(always)]
    pub(in crate::engine) fn finish_marks_left_meanwhile(&self, shard: Shard<'_>, deadline: u64) {
        if shard.was_marked_meanwhile() && deadline != NOTHING_MORE {
            self.finish_marks(shard);
        }
    }

    /// Finishes what was marked, unless another process holds the lock: that one checks for marks after releasing it.
    #[cold]
    pub(in crate::engine) fn finish_marks(&self, shard: Shard<'_>) {
        // This ends: each round gets further, and a new search begins only for marks left in the meantime.
        while shard.was_marked_meanwhile() {
            match self.lock(shard, LockFor::GiveBack, LockWait::NOT) {
                // Taking the lock has finished some. The rest is for the next round.
                Ok(mut locked) => locked.leave_marks(),
                Err(_) => return,
            }
        }
    }
}

impl LockedShard<'_> {
    /// Searches some of the holds and tickets for marks, and finishes what was given back without the lock.
    pub(in crate::engine) fn finish_some_marks(&mut self) -> Result<(), Box<Error>> {
        if !self.shard.has_marks() {
            return Ok(());
        }
        if self.shard.set.adapts {
            self.read_clock();
        }
        let memory = self.shard.memory;
        let marks = &memory.control().marks;
        let tickets_from = memory.hold_capacity();
        let end = tickets_from + memory.touched_tickets();
        let mut left = marks.load(Ordering::Relaxed) >> 1;
        // Every mark was left before the flag was set.
        fence(Ordering::Acquire);
        // A count above the number of places is damage.
        if left == 0 || left > end {
            left = end;
            // Clears the flag before the search, which may miss what is marked from now on: that sets the flag again.
            marks.swap(left << 1, Ordering::AcqRel);
        }
        let begun_with = left;
        let mut searched = 0;
        while searched < SEARCHED_AT_ONCE {
            if left <= tickets_from {
                // Holds beyond these were never used.
                left = left.min(memory.touched_holds());
            }
            let Some(place) = left.checked_sub(1) else { break };
            match place.checked_sub(tickets_from) {
                Some(ticket) => self.finish_if_given_up(ticket)?,
                None => {
                    self.finish_if_marked(place)?;
                }
            }
            left = place;
            searched += 1;
        }
        // Last, so that if this process dies before, the next one searches these places again. Subtracted, not stored,
        // because another process may have set the flag in the meantime.
        marks.fetch_sub((begun_with - left) << 1, Ordering::Release);
        Ok(())
    }

    /// Frees the hold at `index` if its permit gave it back without the lock. Returns whether it did.
    pub(in crate::engine) fn finish_if_marked(&self, index: u64) -> Result<bool, Box<Error>> {
        let memory = self.shard.memory;
        let Some(failed) = memory.hold(index).and_then(HoldPlace::mark) else {
            return Ok(false);
        };
        let mut transaction = memory.journal().begin();
        self.free_hold(&mut transaction, index, Ending::Finished { failed });
        self.shard.commit(&mut transaction)?;
        self.correct_freed(index);
        Ok(true)
    }

    /// Frees the ticket at `index` if it was given up without the lock.
    fn finish_if_given_up(&self, index: u64) -> Result<(), Box<Error>> {
        let memory = self.shard.memory;
        let was_given_up = queue::state(&QueueWords::reading(memory), index).phase != Phase::Free
            && memory
                .ticket(index)
                .is_some_and(|ticket| ticket.owner().load(Ordering::Relaxed) == 0);
        if was_given_up {
            self.take_back_ticket(index, &memory.control().reclaimed_tickets)?;
        }
        Ok(())
    }
}
