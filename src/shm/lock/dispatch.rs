//! The two kinds of lock that a segment's shards may have, and the one place where they differ.
//!
//! The kind is fixed for a segment. It is read from the header once, at attach, and kept privately from then on.

use std::io;
use std::time::Duration;

use super::guard::{Guard, LockError};
use super::slot_word::SlotWord;
use crate::choices::LockKind;
use crate::shm::layout::records::{LOCK_KIND_ROBUST_MUTEX, LOCK_KIND_SLOT, LockArea};

impl LockKind {
    /// The kind that a header names; `None` if this build does not know it.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        match word {
            LOCK_KIND_ROBUST_MUTEX => Some(Self::RobustMutex),
            LOCK_KIND_SLOT => Some(Self::Slot),
            _ => None,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::RobustMutex => LOCK_KIND_ROBUST_MUTEX,
            Self::Slot => LOCK_KIND_SLOT,
        }
    }

    /// Whether all processes must be in one PID namespace and use one C library, because the lock's words depend on
    /// them.
    pub(crate) fn is_of_one_namespace(self) -> bool {
        self == Self::RobustMutex
    }

    /// Makes a free lock, whatever the area held before. No other thread or process may be using it as a lock.
    pub(crate) fn initialise(self, area: &LockArea) -> io::Result<()> {
        match self {
            Self::RobustMutex => area.initialise_mutex(),
            Self::Slot => {
                area.clear();
                Ok(())
            }
        }
    }

    /// Takes the lock for the participant `owner` if nobody holds it.
    #[inline(always)]
    pub(crate) fn try_lock(self, area: &LockArea, owner: u64) -> Result<Option<Guard<'_>>, LockError> {
        match self {
            Self::RobustMutex => area.try_lock_mutex(),
            Self::Slot => Ok(area.try_lock_slot(owner)),
        }
    }

    /// Takes the lock, waiting no longer than `timeout`; `None` if it could not be taken in that time. If
    /// [`Guard::owner_died`] is true, the protected data may be half changed. `is_alive` is called for the
    /// participant that a word names.
    pub(crate) fn lock(
        self,
        area: &LockArea,
        owner: u64,
        timeout: Duration,
        is_alive: impl Fn(SlotWord) -> bool,
    ) -> Result<Option<Guard<'_>>, LockError> {
        match self {
            Self::RobustMutex => area.lock_mutex(timeout),
            Self::Slot => Ok(area.lock_slot(owner, timeout, is_alive)),
        }
    }

    /// Whether a lock has to be recreated because nobody is left to release it. A lock that names a dead participant
    /// does not: the next process takes it over.
    pub(crate) fn is_beyond_the_dead(self, area: &LockArea) -> bool {
        match self {
            Self::RobustMutex => area.mutex_word().holder.is_some() || area.is_unrecoverable(),
            Self::Slot => false,
        }
    }
}
