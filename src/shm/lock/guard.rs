//! A lock that is held, and its release.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;

use super::lock_holder::LockHolder;
use crate::shm::layout::records::LockArea;

/// Why a lock was not taken.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Nobody released it in time. `holder` says who has it, as far as the lock tells.
    TimedOut { holder: Option<LockHolder> },
    /// According to the lock word, nobody can ever take it again. No code of this library leaves it like that.
    Unrecoverable,
    /// An undocumented error from pthread.
    System(io::Error),
}

/// How a lock was taken. The lowest bit is set if its previous owner died with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Taken {
    Mutex = 0,
    MutexOfDead = 1,
    Slot = 2,
    SlotOfDead = 3,
}

/// A lock, held. Dropping the guard unlocks it.
///
/// A mutex whose owner died is always marked consistent before it is released, repaired or not; otherwise nobody
/// could ever take it again. What cannot be repaired is recorded in the set's own `poisoned` word.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    area: &'a LockArea,
    taken: Taken,
    /// The kernel's list of held mutexes belongs to the thread.
    not_send: PhantomData<*mut ()>,
}

impl<'a> Guard<'a> {
    /// # Safety
    ///
    /// This thread must have just locked the mutex in the area; `owner_died` says whether the answer was EOWNERDEAD.
    #[inline(always)]
    pub(super) unsafe fn of_mutex(area: &'a LockArea, owner_died: bool) -> Self {
        Self {
            area,
            taken: if owner_died {
                Taken::MutexOfDead
            } else {
                Taken::Mutex
            },
            not_send: PhantomData,
        }
    }

    /// The guard of the slot lock in the area, which this thread has just taken; `owner_died` says whether it took it
    /// from the dead.
    #[inline(always)]
    pub(super) fn of_slot(area: &'a LockArea, owner_died: bool) -> Self {
        Self {
            area,
            taken: if owner_died {
                Taken::SlotOfDead
            } else {
                Taken::Slot
            },
            not_send: PhantomData,
        }
    }
}

impl Guard<'_> {
    /// Whether the previous owner died with the lock.
    #[inline]
    pub(crate) fn owner_died(&self) -> bool {
        self.taken as u8 & 1 != 0
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.taken == Taken::Mutex {
            // SAFETY: this thread holds the mutex: by the contract of `of_mutex` it has locked it, and the guard is
            // not `Send`.
            unsafe { self.area.unlock_mutex() };
        } else if self.taken == Taken::MutexOfDead {
            // SAFETY: as above, and locking returned EOWNERDEAD.
            unsafe { self.area.unlock_mutex_of_dead() };
        } else {
            self.area.unlock_slot();
        }
    }
}
