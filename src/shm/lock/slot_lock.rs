//! The slot lock: a word that names its owner, a futex to sleep on, and a way to take the lock over from the dead.
//!
//! It contains no thread id and no pointer, so it works across PID namespaces and C libraries, and in a copied file.
//! The price is that the kernel does not report the death of an owner: waiters have to check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::guard::Guard;
use super::slot_word::{NextStep, SlotWord};
use super::spin::{Look, spin};
use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::LockArea;
use crate::shm::wake::futex::{self, FutexValue};

/// How often the first waiter checks whether the owner is alive.
const FIRST_WAITERS_SLICE: Duration = Duration::from_millis(5);

/// How often the others check, in case the first waiter is gone and took a wake-up with it.
const SLICE: Duration = Duration::from_millis(50);

impl LockArea {
    /// Zeroes every word: a free slot lock.
    pub(super) fn clear(&self) {
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn slot_lock(&self) -> &AtomicU64 {
        &self.words[0]
    }

    /// The lock word, read without touching it.
    pub(crate) fn slot_word(&self) -> SlotWord {
        // Synchronises with the swap that stored the word: whoever sees an owner also sees its slot as taken.
        SlotWord(load_acquire(self.slot_lock()))
    }

    /// Takes the lock for a participant if it is free.
    #[inline(always)]
    pub(in crate::shm::lock) fn try_lock_slot(&self, owner: u64) -> Option<Guard<'_>> {
        self.replace(SlotWord::FREE, SlotWord::held_by(owner), false)
    }

    #[inline(always)]
    fn swap(&self, seen: SlotWord, new: SlotWord) -> bool {
        // Release ordering, too: whoever finds this word must find the slot it names taken.
        self.slot_lock()
            .compare_exchange(seen.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    #[inline(always)]
    fn replace(&self, seen: SlotWord, own: SlotWord, owner_died: bool) -> Option<Guard<'_>> {
        self.swap(seen, own).then(|| Guard::of_slot(self, owner_died))
    }

    /// Takes the lock for a participant, waiting no longer than `timeout`, or takes it over from an owner that is
    /// dead according to `is_alive`. Calls that at least once, even if there is no time to wait.
    #[cold]
    pub(in crate::shm::lock) fn lock_slot(
        &self,
        owner: u64,
        timeout: Duration,
        is_alive: impl Fn(SlotWord) -> bool,
    ) -> Option<Guard<'_>> {
        if timeout.is_zero() {
            return self.take_from_dead(owner, self.slot_word(), is_alive);
        }
        // `None` if it is so far away that no clock reaches it.
        let deadline = Instant::now().checked_add(timeout);
        if let Some(guard) = self.spin_slot(owner) {
            return Some(guard);
        }
        let own = SlotWord::held_by(owner);
        let mut has_slept = false;
        // The word in which this process announced itself as a waiter.
        let mut announced = SlotWord::FREE;
        loop {
            let mut seen = self.slot_word();
            match seen.next_step(own, has_slept) {
                NextStep::Take(word) => match self.replace(seen, word, false) {
                    Some(guard) => return Some(guard),
                    None => continue,
                },
                NextStep::Announce(word) => {
                    if !self.swap(seen, word) {
                        continue;
                    }
                    seen = word;
                    announced = word;
                    // The owner may have been dead for a long time.
                    if let Some(guard) = self.take_from_dead(owner, seen, &is_alive) {
                        return Some(guard);
                    }
                }
                NextStep::Sleep => {}
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A process that comes second cannot know whether the first is still waiting.
            let slice = if seen == announced || !has_slept {
                FIRST_WAITERS_SLICE
            } else {
                SLICE
            };
            let slice = left.map_or(slice, |left| left.min(slice));
            if !slice.is_zero() {
                futex::wait(self.slot_lock(), FutexValue::of(seen.0), slice);
                has_slept = true;
            }
            if self.slot_word() == seen {
                // Nothing has changed: either nobody woke us, or the same owner has the lock again.
                if let Some(guard) = self.take_from_dead(owner, seen, &is_alive) {
                    return Some(guard);
                }
            }
            if slice.is_zero() {
                // The lock may have been released while the processor was busy with others.
                let own = if has_slept { own.with_waiters() } else { own };
                return self.replace(SlotWord::FREE, own, false);
            }
        }
    }

    fn spin_slot(&self, owner: u64) -> Option<Guard<'_>> {
        let look = || {
            let word = self.slot_word();
            Look {
                word: word.0,
                is_free: word.is_free(),
            }
        };
        let spun: Result<_, std::convert::Infallible> = spin(look, || Ok(self.try_lock_slot(owner)));
        let Ok(guard) = spun;
        guard
    }

    /// Takes the lock over if the owner named in `seen` is dead. Swaps against the whole word as it was read before
    /// that check.
    fn take_from_dead(
        &self,
        owner: u64,
        seen: SlotWord,
        is_alive: impl Fn(SlotWord) -> bool,
    ) -> Option<Guard<'_>> {
        if seen.is_free() {
            return self.try_lock_slot(owner);
        }
        if seen.names(owner) || is_alive(seen) {
            return None;
        }
        let own = seen.taken_over_by(SlotWord::held_by(owner));
        self.replace(seen, own, true)
    }

    /// Releases the lock, which this thread holds, and wakes one waiter, if there may be any. If the process dies
    /// between the two, the waiters lose a slice.
    #[inline(always)]
    pub(super) fn unlock_slot(&self) {
        let former = SlotWord(self.slot_lock().swap(SlotWord::FREE.0, Ordering::Release));
        if former.has_waiters() {
            futex::wake(self.slot_lock());
        }
    }
}
