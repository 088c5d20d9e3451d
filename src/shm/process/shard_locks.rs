//! The locks of a segment's shards, as its participants take them and as others see them.
//!
//! Only this module knows how to find out whether the owner of a lock is alive.

use std::time::Duration;

use super::host::process_of_thread;
use super::participant::{Membership, ParticipantId, ParticipantTable};
use crate::choices::LockKind;
use crate::error::ProcessId;
use crate::shm::layout::records::LockArea;
use crate::shm::lock::guard::{Guard, LockError};
use crate::shm::lock::lock_holder::LockHolder;
use crate::shm::lock::slot_word::SlotWord;

/// The state of a lock, read without touching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockState {
    pub(crate) holder: Option<LockHolder>,
    /// The holder died with the lock, and nobody has taken it since.
    pub(crate) owner_died: bool,
    /// It can never be taken again as it is.
    pub(crate) is_lost: bool,
}

impl ParticipantTable {
    /// The state of a lock. `is_alive` is called for the participant that the lock names, if it names one.
    pub(crate) fn lock_state(
        &self,
        area: &LockArea,
        is_alive: impl FnOnce(ParticipantId) -> bool,
    ) -> LockState {
        match self.lock_kind {
            LockKind::RobustMutex => {
                let word = area.mutex_word();
                LockState {
                    holder: word.holder.map(|thread| LockHolder {
                        process: process_of_thread(thread).map(ProcessId::of_own_namespace),
                        thread: Some(thread),
                    }),
                    owner_died: word.owner_died,
                    is_lost: area.is_unrecoverable(),
                }
            }
            LockKind::Slot => {
                let word = area.slot_word();
                let owner = self.owner_of(word).filter(|owner| is_alive(*owner));
                LockState {
                    holder: owner.map(|owner| LockHolder {
                        process: self.process_of(owner),
                        thread: None,
                    }),
                    owner_died: !word.is_free() && owner.is_none(),
                    is_lost: false,
                }
            }
        }
    }

    /// The participant named by a lock word, if the slot still belongs to it.
    fn owner_of(&self, word: SlotWord) -> Option<ParticipantId> {
        let id = self.read(word.slot()?)?.id;
        word.names(id.to_word()).then_some(id)
    }

    /// The process of a participant, as it is named to people, if the slot still belongs to it.
    pub(crate) fn process_of(&self, id: ParticipantId) -> Option<ProcessId> {
        let record = self.read(id.slot).filter(|record| record.id == id)?;
        Some(self.shown(record.identity))
    }
}

impl Membership {
    /// Takes a lock for this process, which is the participant `owner`, if nobody holds it.
    #[inline(always)]
    pub(crate) fn try_lock<'a>(
        &self,
        area: &'a LockArea,
        owner: u64,
    ) -> Result<Option<Guard<'a>>, LockError> {
        self.table().lock_kind.try_lock(area, owner)
    }

    /// Takes a lock, waiting up to `timeout` for it. With a timeout of zero, it is only taken if it is free or its
    /// owner is dead.
    pub(crate) fn lock<'a>(
        &self,
        area: &'a LockArea,
        owner: u64,
        timeout: Duration,
    ) -> Result<Guard<'a>, LockError> {
        let kind = self.table().lock_kind;
        let guard = kind.lock(area, owner, timeout, |word| self.is_lock_owner_alive(word))?;
        guard.ok_or_else(|| LockError::TimedOut {
            // The holder only matters to a process that waits for it.
            holder: if timeout.is_zero() {
                None
            } else {
                self.lock_state(area).holder
            },
        })
    }

    fn lock_state(&self, area: &LockArea) -> LockState {
        self.table().lock_state(area, |id| self.is_alive(id))
    }

    /// Whether the participant named by a lock word may still release the lock. It cannot if the slot is free or has
    /// another generation, or if its byte is not locked. Nor can it if its process can be looked up and is past its
    /// last instruction: its byte stays locked until its memory is freed, which may take longer than anybody wants to
    /// wait.
    fn is_lock_owner_alive(&self, word: SlotWord) -> bool {
        self.table()
            .owner_of(word)
            .is_some_and(|owner| self.is_alive(owner) && !self.is_past_its_end(owner))
    }
}
