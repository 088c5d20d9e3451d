//! Giving back without the lock. The process that cannot have the lock leaves a mark where it held something, and says
//! beside the lock that there are marks; the process that has the lock next finishes what was begun.
//!
//! A mark is a number that only grows: twice the serial number of the permit, so that it means nothing to a later one in
//! the same place. It is in no journal, so undoing something else leaves it alone. A ticket that was given up has no
//! owner.
//!
//! No process looks for marks unless it is said that there are some, and none is left alone: a process that leaves one
//! says so and then tries the lock, and the holder of the lock releases it and then looks whether that was said. On processors that
//! reorder these steps, too: `src/weak_memory/mark_order.rs` explores them, and is changed with them.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use crate::engine::queue::queue_words::QueueWords;
use crate::engine::settle::settlement::Released;
use crate::engine::shard::hold::Ending;
use crate::engine::shard::locked_shard::{LockedShard, NOTHING_MORE};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::queue::{self, Phase};
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::shard_memory::ShardMemory;

/// In `marks`: something was marked since the search that is under way, if any, began. Above it: the places that it has
/// still to search, from the last one down, the holds first and the tickets behind them.
const MARKED: u64 = 1;

/// How many places are searched under one lock.
const SEARCHED_AT_ONCE: u64 = 64;

/// Orders an atomic change before what follows, for all that do the same: one of two sees the other.
#[inline(always)]
fn fence_after_change() {
    if cfg!(target_arch = "x86_64") {
        // No later load passes such an instruction there, so only the compiler is to be told.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

impl HoldPlace<'_> {
    /// Whether the permit that has this hold gave it back without the lock, and if so whether its work had failed.
    pub(crate) fn mark(self) -> Option<bool> {
        let mark = self.returned().load(Ordering::Relaxed);
        let is_marked = self.is_taken() && mark >> 1 == self.serial().load(Ordering::Relaxed);
        is_marked.then_some(mark & 1 != 0)
    }
}

impl ShardMemory {
    /// Says that everything has to be searched for marks.
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

    /// Whether there may be marks, for a thread that has just released the lock: of the thread that releases it and the one
    /// that left a mark, one sees the other.
    #[inline(always)]
    pub(in crate::engine) fn was_marked_meanwhile(&self) -> bool {
        fence_after_change();
        self.has_marks()
    }
}

impl SegmentEngine {
    /// Gives a hold back without the lock.
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
        // Where it comes to be another's meanwhile, that one's serial is greater.
        let mark = 2 * hold.serial.get() + u64::from(failed);
        place.returned().fetch_max(mark, Ordering::SeqCst);
        self.finish_or_leave_marks(shard);
        if is_whole {
            Released::GivenBack
        } else {
            Released::WasReclaimed
        }
    }

    /// After a mark was left: finishes it if the lock can be had, and leaves it to the process that has it otherwise.
    pub(in crate::engine) fn finish_or_leave_marks(&self, shard: Shard<'_>) {
        shard.memory.search_for_marks();
        fence_after_change();
        self.finish_marks(shard);
    }

    /// Finishes what others have begun to give back while the lock was held that has just been released, unless that is to
    /// take no longer.
    #[inline(always)]
    pub(in crate::engine) fn finish_marks_left_meanwhile(&self, shard: Shard<'_>, deadline: u64) {
        if shard.was_marked_meanwhile() && deadline != NOTHING_MORE {
            self.finish_marks(shard);
        }
    }

    /// Finishes what others have begun to give back, as long as no process has the lock. The process that has it looks
    /// for marks when it has released it.
    #[cold]
    pub(in crate::engine) fn finish_marks(&self, shard: Shard<'_>) {
        // Each round searches further, and another search is only begun for marks that were left meanwhile.
        while shard.was_marked_meanwhile() && self.lock_for_marks(shard).is_ok() {}
    }
}

impl LockedShard<'_> {
    /// Searches some of the holds and tickets for what was given back without the lock, and finishes that.
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
        // What is marked was marked before this was said.
        fence(Ordering::Acquire);
        // More than there is to search is damage.
        if left == 0 || left > end {
            left = end;
            // Before the search: what is marked from now on, it may miss, and another one follows.
            marks.swap(left << 1, Ordering::AcqRel);
        }
        let begun_with = left;
        let mut searched = 0;
        while searched < SEARCHED_AT_ONCE {
            if left <= tickets_from {
                // What lies between was never used.
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
        // The last: the process that comes after a death in the middle searches here again. Another may leave a mark
        // meanwhile.
        marks.fetch_sub((begun_with - left) << 1, Ordering::Release);
        Ok(())
    }

    /// Frees the hold at `index` if its permit gave it back without the lock; answers whether it did.
    pub(in crate::engine) fn finish_if_marked(&self, index: u64) -> Result<bool, Box<Error>> {
        let memory = self.shard.memory;
        let Some(failed) = memory.hold(index).and_then(HoldPlace::mark) else {
            return Ok(false);
        };
        let mut transaction = memory.journal().begin();
        self.free_hold(&mut transaction, index, Ending::Finished { failed });
        self.shard.commit(&mut transaction)?;
        Ok(true)
    }

    /// Takes the ticket at `index` back if it was given up without the lock.
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
