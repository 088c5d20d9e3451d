//! Waiting for the store's answer where nothing is leased yet: the only requests that wait for a store.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::{Costs, Decision};
use crate::error::Error;
use crate::limit::{Assessment, LeaseWord, Shortage};
use crate::shm::file::region::Mapped;
use crate::shm::layout::row::Row;
use crate::shm::time::clock::boot_nanos;
use crate::shm::wake::futex::{self, FutexValue};

impl SegmentEngine {
    /// For how many nanoseconds a request that the limits refuse may wait for the store's answer. Zero if they admit
    /// it, if another limit refuses it as well, or if no process asks the store.
    #[cold]
    pub(in crate::engine) fn cold_wait_at(&self, at: ShardAt<'_>, row: Row<'_>, costs: &Costs) -> u64 {
        let mut longest = 0;
        for (index, cost) in costs.iter() {
            let Some(limit) = at.shard.limits.get(index) else {
                continue;
            };
            let (assessment, mark) = limit.verdict_and_mark(row, at.now, cost);
            if assessment == Assessment::Admissible {
                continue;
            }
            if limit.shortage_of(mark) != Some(Shortage::Pending) {
                return 0;
            }
            longest = longest.max(limit.cold_wait());
        }
        let owner = if longest > 0 { self.duty_owner() } else { 0 };
        if owner != 0 && self.is_owner_alive(owner) {
            longest
        } else {
            0
        }
    }

    /// For how many nanoseconds a request would wait for the store's answer now.
    pub(crate) fn cold_wait(&self, target: Target<'_>, costs: &Costs) -> Result<u64, Box<Error>> {
        if !target.set.has_lease_room {
            return Ok(0);
        }
        let locked = self.lock(target.shard(), LockFor::Look, LockWait::Timeout)?;
        Ok(self.cold_wait_at(locked.at, target.row_in(locked.shard), costs))
    }

    /// Which answer of the store was the latest; `None` if no limit has room for a lease.
    pub(crate) fn latest_answer(&self) -> Option<FutexValue> {
        self.duty_words()
            .map(|words| futex::value(words.word(LeaseWord::Answered)))
    }

    /// The futex that is advanced with each answer of the store, for a caller that may outlive the engine.
    pub(crate) fn answers(&self) -> Option<Mapped<AtomicU64>> {
        self.duty_words()?.mapped(LeaseWord::Answered).ok()
    }

    /// Decides again with each answer of the store, until the request no longer waits for one, or has waited for as
    /// long as its limits say.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn await_lease(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<Answer, Box<Error>> {
        let limits = &target.set.shown().limits;
        let longest = limits
            .iter()
            .filter(|limit| costs.limits.contains(limit.index))
            .map(LimitRules::cold_wait)
            .max();
        let deadline = boot_nanos().saturating_add(longest.unwrap_or(0));
        while let Some(words) = self.duty_words() {
            let seen = futex::value(words.word(LeaseWord::Answered));
            let left = deadline.saturating_sub(boot_nanos());
            if left == 0 {
                break;
            }
            *decision = Decision::pending(costs, target.set.notes_beside);
            let answer = self.decide(target, costs, decision, Attempt::First)?;
            if answer != Answer::AwaitsLease {
                return Ok(answer);
            }
            futex::wait(words.word(LeaseWord::Answered), seen, Duration::from_nanos(left));
        }
        self.decide(target, costs, decision, Attempt::Last)
    }
}
