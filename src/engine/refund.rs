//! Giving back what was charged and not used.

use std::sync::atomic::Ordering;

use super::decision::Decided;
use super::limit_rules::LimitRules;
use super::memory::Row;
use super::set::PartAt;
use crate::shm::journal::Transaction;

impl PartAt<'_> {
    /// Gives back what a permit reserved and did not use, of a decision at `decided_at`; answers the units really
    /// given back.
    pub(super) fn refund_unused(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        unused: u64,
        reserved: &Decided,
        decided_at: u64,
    ) -> u64 {
        let elapsed = self.now.monotonic.saturating_sub(decided_at);
        let applied_at = self.part.memory.control().applied_at.load(Ordering::Relaxed);
        let left = if decided_at <= applied_at && applied_at > 0 {
            // How the limit stood then was noted in the units of a definition that is not in force any more.
            limit.rule.left_at_least(elapsed, reserved.figure)
        } else {
            limit.rule.left(reserved.mark, elapsed, reserved.figure)
        };
        self.refund(transaction, limit, row, unused, left, decided_at)
    }

    /// Gives back what a dead holder had reserved at `decided_at`; answers the units really given back.
    pub(super) fn refund_dead(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        reserved: u64,
        decided_at: u64,
    ) -> u64 {
        let elapsed = self.now.monotonic.saturating_sub(decided_at);
        let left = limit.rule.left_at_least(elapsed, reserved);
        self.refund(transaction, limit, row, reserved, left, decided_at)
    }

    fn refund(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        amount: u64,
        left: u128,
        decided_at: u64,
    ) -> u64 {
        let reset_at = self.part.counters(limit.index).reset_at.load(Ordering::Relaxed);
        // A reset has replenished what was reserved before it (at zero, where a simulation may begin, there was none); and
        // a row may be another key's by now.
        if (decided_at <= reset_at && reset_at > 0) || !row.is_the_same_since(decided_at) {
            return 0;
        }
        limit.refund(row, transaction, self.now, amount, left)
    }
}
