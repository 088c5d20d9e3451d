//! What may have to be done before an operation on a shard whose lock was just taken: repair what a dead owner left
//! unfinished, refuse a poisoned shard, migrate to a new definition, finish marked releases.
//!
//! **Nothing is parsed, compiled or allocated for a new definition under the lock.** If this process has not yet read
//! the rules it needs, it releases the lock, reads them, and takes the lock again.

use std::sync::atomic::Ordering;

use crate::engine::rules::set_rules::SetRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::recovery_report::Repairs;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::error::Error;
use crate::shm::layout::records::{SET_UNCHECKED, SET_UNRECOVERED};
use crate::shm::lock::guard::LockError;
use crate::shm::lock::journal::JournalState;
use crate::shm::probes;

/// How many times the lock is taken for one operation if yet another definition comes into force each time. After that,
/// the operation fails as if the lock had timed out.
const ROUNDS: usize = 16;

impl LockedShard<'_> {
    /// Whether a process died while it held the lock, and nobody has recovered the shard since.
    fn owner_died(&self) -> bool {
        self.lock_was_of_dead()
            || self.shard.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNRECOVERED
    }

    /// Whether a previous holder of the lock left an operation half done, or may have.
    fn was_left_unfinished(&self) -> bool {
        self.owner_died()
            || self.shard.memory.journal().state() != JournalState::Idle
            || self.shard.memory.control().poisoned.load(Ordering::Relaxed) == SET_UNCHECKED
    }
}

impl SegmentEngine {
    /// Does everything that a locked shard needs. If the lock has to be taken again, waits for it as long as `wait`
    /// says.
    #[cold]
    pub(super) fn attend<'a>(
        &'a self,
        locked: LockedShard<'a>,
        purpose: LockFor,
        wait: LockWait,
    ) -> Result<LockedShard<'a>, Box<Error>> {
        let (mut locked, in_force) = self.by_known_rules(locked, purpose, wait)?;
        match locked.try_attend(in_force, purpose) {
            Ok(()) => Ok(locked),
            Err(error) => {
                // What failed now would fail after the unlock, too.
                locked.leave_marks();
                Err(error)
            }
        }
    }

    /// The locked shard with the rules of its own definition, and the rules in force. If this process has not read them
    /// yet, it reads them without the lock, and takes the lock again.
    fn by_known_rules<'a>(
        &'a self,
        mut locked: LockedShard<'a>,
        purpose: LockFor,
        wait: LockWait,
    ) -> Result<(LockedShard<'a>, &'a SetRules), Box<Error>> {
        let shard = locked.shard.unruled();
        for _ in 0..ROUNDS {
            let needed = self.needed_rules(shard);
            if let Ok(Some(rules)) = &needed {
                locked.at.shard = shard.by(rules.own);
                return Ok((locked, rules.in_force));
            }
            // Finishing marks after the unlock would need the same rules.
            locked.leave_marks();
            needed?;
            if locked.lock_was_of_dead() {
                // What the dead owner left has to be undone by the rules that it began under, so the first process that
                // has read them does that. The next holder cannot tell from the lock that an owner died, so a word says
                // so.
                let poisoned = &shard.memory.control().poisoned;
                let _ = poisoned.compare_exchange(0, SET_UNRECOVERED, Ordering::Relaxed, Ordering::Relaxed);
            }
            drop(locked);
            self.definitions().learn(shard.set)?;
            let reading = purpose.sets_instant().then(|| self.now(shard));
            locked = self.take_lock(shard, reading, wait)?.of(self, shard);
        }
        locked.leave_marks();
        drop(locked);
        Err(self.lock_failure(shard, LockError::TimedOut { holder: None }))
    }
}

impl<'a> LockedShard<'a> {
    fn try_attend(&mut self, in_force: &'a SetRules, purpose: LockFor) -> Result<(), Box<Error>> {
        // First, because whatever is half done was begun under the shard's own definition.
        self.recover_if_unfinished()?;
        if purpose == LockFor::Repair {
            return self.migrate(in_force);
        }
        if self.shard.memory.control().poisoned.load(Ordering::Relaxed) != 0 {
            return Err(self.shard.poisoned());
        }
        self.migrate(in_force)?;
        self.finish_some_marks()?;
        // A process may have died after it freed something and before it served the queue.
        self.serve_every_queue()
    }

    fn recover_if_unfinished(&mut self) -> Result<(), Box<Error>> {
        if !self.was_left_unfinished() {
            return Ok(());
        }
        let (path, set) = (self.engine.path(), &*self.shard.set.name);
        let owner_died = self.owner_died();
        if owner_died {
            probes::owner_dead::fire(|| (path, set));
        }
        let repairs = self.recover(owner_died);
        let Repairs {
            owner_died,
            undone_words,
            rebuilt,
            poisoned,
            ..
        } = repairs;
        probes::recovered::fire(|| (path, set, owner_died, undone_words, rebuilt, poisoned));
        self.repairs = Some(repairs);
        // What was undone may have been the step to the next definition.
        let shard = self.shard.unruled();
        self.at.shard = shard.by(self.engine.own_rules(shard)?);
        Ok(())
    }
}
