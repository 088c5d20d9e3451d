//! What is seen to before an operation on a shard whose lock was taken: another definition, what a dead owner left
//! unfinished, a poisoned shard, marks.
//!
//! **Nothing is parsed, compiled or allocated for another definition under the lock.** A lock becomes a [`LockedShard`] that is
//! attended to only by rules that the process has read before. Where it has not, it releases the lock, reads them, and takes
//! the lock again.

use std::sync::atomic::Ordering;

use super::locked_shard::{LockWait, LockedShard, NOTHING_MORE, TakenLock};
use super::segment_engine::SegmentEngine;
use super::set_engine::{RuledShard, Shard};
use crate::engine::definition::set_rules::SetRules;
use crate::engine::recover::recovery_report::Repairs;
use crate::error::Error;
use crate::shm::layout::records::{SET_UNCHECKED, SET_UNRECOVERED};
use crate::shm::lock::guard::{Guard, LockError};
use crate::shm::lock::journal::JournalState;
use crate::shm::probes;

/// How often a lock is taken for one operation while each time another definition has come into force. After that the
/// lock counts as one that could not be had.
const ROUNDS: usize = 16;

impl LockedShard<'_> {
    /// Whether the process that had the lock before died with it, and no other has recovered the shard since.
    fn owner_died(&self) -> bool {
        self.guard.owner_died()
            || self.shard.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNRECOVERED
    }

    /// Whether an operation was begun and not ended by the process that had the lock before, or might have been.
    fn was_left_unfinished(&self) -> bool {
        self.owner_died()
            || self.shard.memory.journal().state() != JournalState::Idle
            || self.shard.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNCHECKED
    }
}

impl SegmentEngine {
    /// Whether anything is to be seen to before an operation on a shard that is locked: what was left unfinished, a poisoned
    /// shard, marks, another definition. All at once, because hardly ever anything is.
    #[inline(always)]
    pub(super) fn needs_attention(&self, shard: RuledShard<'_>, guard: &Guard<'_>) -> bool {
        let control = shard.memory.control();
        let words = control.poisoned.load(Ordering::Relaxed)
            | control.marks.load(Ordering::Relaxed)
            | shard.memory.journal().unfinished()
            | self.difference_from_definition(shard);
        words != 0 || guard.owner_died()
    }

    /// Sees to all there is under a lock that was taken, for as long as `wait` says where it has to be taken again.
    #[cold]
    pub(super) fn attend<'a>(
        &'a self,
        shard: Shard<'a>,
        taken: TakenLock<'a>,
        reads_clock: bool,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let (mut locked, in_force) = self.by_known_rules(shard, taken, reads_clock, wait)?;
        match self.try_attend(&mut locked, in_force) {
            Ok(()) => Ok(locked),
            Err(error) => {
                // What cannot be attended to now, cannot be after the unlock either.
                locked.pending_wake.deadline = NOTHING_MORE;
                Err(error)
            }
        }
    }

    /// Takes the lock if no process has it, for the sake of the marks alone: what is left of them after this is for the
    /// caller to look at, once it has released the lock.
    pub(in crate::engine) fn lock_for_marks<'a>(&'a self, shard: Shard<'a>) -> Result<(), Box<Error>> {
        let taken = self.take_lock(shard, Some(self.now(shard)), LockWait::NOT)?;
        let mut locked = self.attend(shard, taken, true, LockWait::NOT)?;
        locked.pending_wake.deadline = NOTHING_MORE;
        Ok(())
    }

    /// As [`lock`](Self::lock), but takes poisoned shards as well, and says what had to be repaired.
    pub(crate) fn lock_and_report<'a>(
        &'a self,
        shard: Shard<'a>,
    ) -> Result<(LockedShard<'a>, Option<Repairs>), Box<Error>> {
        let now = self.now(shard);
        self.refuse_if_removed(now)?;
        let taken = self.take_lock(shard, Some(now), LockWait::Timeout)?;
        let (mut locked, in_force) = self.by_known_rules(shard, taken, true, LockWait::Timeout)?;
        let repairs = self.recover_if_unfinished(&mut locked)?;
        self.migrate(&mut locked, in_force)?;
        Ok((locked, repairs))
    }

    /// The locked shard by the definition that it is of, and the rules of the one in force. Where this process has not read
    /// that, it does so without the lock, and takes the lock again.
    fn by_known_rules<'a>(
        &'a self,
        shard: Shard<'a>,
        mut taken: TakenLock<'a>,
        reads_clock: bool,
        wait: LockWait,
    ) -> Result<(LockedShard<'a>, &'a SetRules), Box<Error>> {
        for _ in 0..ROUNDS {
            if let Some(rules) = self.needed_rules(shard)? {
                let mut locked = LockedShard::new(self, shard, taken);
                locked.shard = shard.by(rules.own);
                return Ok((locked, rules.in_force));
            }
            if taken.guard.owner_died() {
                // What it left is undone by the definition that it was begun under, so by the next to have read that. The lock
                // does not say any more that it died.
                let poisoned = &shard.memory.control().poisoned;
                let _ = poisoned.compare_exchange(0, SET_UNRECOVERED, Ordering::Relaxed, Ordering::Relaxed);
            }
            drop(taken);
            self.definitions().learn(shard.set)?;
            taken = self.take_lock(shard, reads_clock.then(|| self.now(shard)), wait)?;
        }
        drop(taken);
        Err(self.lock_failure(shard, LockError::TimedOut { holder: None }))
    }

    fn try_attend<'a>(&self, locked: &mut LockedShard<'a>, in_force: &'a SetRules) -> Result<(), Box<Error>> {
        // What was left unfinished was begun under the definition that the shard is of.
        self.recover_if_unfinished(locked)?;
        if locked.shard.memory.control().poisoned.load(Ordering::Relaxed) != 0 {
            return Err(locked.shard.poisoned());
        }
        self.migrate(locked, in_force)?;
        locked.finish_some_marks()?;
        // The process that died may have freed something and not come to handing it on.
        locked.serve_every_queue()
    }

    fn recover_if_unfinished(&self, locked: &mut LockedShard<'_>) -> Result<Option<Repairs>, Box<Error>> {
        if !locked.was_left_unfinished() {
            return Ok(None);
        }
        let (path, set) = (self.path(), &*locked.shard.set.name);
        let owner_died = locked.owner_died();
        if owner_died {
            probes::owner_dead::fire(|| (path, set));
        }
        let repairs = self.recover(locked.shard, owner_died);
        let Repairs {
            owner_died,
            undone_words,
            rebuilt,
            poisoned,
            ..
        } = repairs;
        probes::recovered::fire(|| (path, set, owner_died, undone_words, rebuilt, poisoned));
        #[cfg(feature = "tracing")]
        {
            locked.pending_wake.repairs = Some(repairs);
        }
        // What was undone may have been the step to the next definition itself.
        let shard = locked.shard.unruled();
        locked.shard = shard.by(self.own_rules(shard)?);
        Ok(Some(repairs))
    }
}
