//! Noting that too little is leased, and waking the process that asks for more.

use std::sync::atomic::Ordering;

use crate::engine::admit::decision::Costs;
use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::queue::pending_wake::PendingWake;
use crate::engine::shard::locked_shard::LockedShard;
use crate::limit::Assessment;
use crate::shm::layout::row::Row;
use crate::shm::wake::futex;

impl LockedShard<'_> {
    /// Notes, of each limit that refuses its cost for want of a lease, how much was asked for.
    #[cold]
    pub(in crate::engine) fn note_unmet(&self, row: Row<'_>, costs: &Costs) {
        for (index, cost) in costs.iter() {
            let Some(limit) = self.shard.limits.get(index) else {
                continue;
            };
            let (assessment, mark) = limit.verdict_and_mark(row, self.now, cost);
            let is_refused = assessment != Assessment::Admissible;
            if is_refused && limit.wants_lease(mark) && limit.note_unmet(row, cost) {
                self.wake_duty();
            }
        }
    }

    /// Has more asked for of a limit whose lease is nearly spent.
    #[cold]
    pub(in crate::engine) fn note_low(&self, limit: &LimitRules, row: Row<'_>) {
        if limit.note_low(row) {
            self.wake_duty();
        }
    }

    /// Has the process that has duty look, once the lock is released. Where none has, or it is dead, the one that takes
    /// it looks first of all.
    fn wake_duty(&self) {
        let Some(words) = self.engine.duty_words() else {
            return;
        };
        let duty_futex = words.duty_futex();
        futex::bump(duty_futex);
        let owner = words.duty().load(Ordering::Relaxed);
        if owner == 0 {
            return;
        }
        let pending_wake = PendingWake {
            futex: duty_futex,
            owner,
            is_process_futex: true,
        };
        if let Some(earlier) = self.pending_wake.futex.replace(Some(pending_wake))
            && !std::ptr::eq(earlier.futex, duty_futex)
        {
            // A waiter that is granted does not wait for this.
            futex::wake(earlier.futex);
        }
    }
}
