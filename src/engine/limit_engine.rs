//! One limit of a set in shared memory: its rule, its state and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::acquire::Decided;
use super::memory::{JournalledState, RepeatableState, StateWords};
use super::plan::{Kind, LimitPlan};
use crate::limit::{Assessment, Mark, Now, Rule};
use crate::shm::journal::Transaction;
use crate::shm::layout::LimitCounters;
use crate::shm::region::{Kept, OutOfRegion, Region};

/// A limit and where it lies.
#[derive(Debug)]
pub(crate) struct LimitEngine {
    pub(crate) rule: Rule,
    pub(crate) kind: Kind,
    /// A cost above this can never be met.
    pub(crate) most_at_once: u64,
    pub(crate) refund_on_death: bool,
    pub(crate) lease: Option<u64>,
    state: Kept<AtomicU64>,
    counters: Kept<LimitCounters>,
}

impl LimitEngine {
    pub(crate) fn locate(
        region: &Arc<Region>,
        plan: &LimitPlan,
        state_offset: u64,
        counters_offset: u64,
    ) -> Result<Self, OutOfRegion> {
        Ok(Self {
            rule: plan.rule,
            kind: plan.kind,
            most_at_once: plan.rule.most_at_once(),
            refund_on_death: plan.refund_on_death,
            lease: plan.lease,
            state: region.keep_words(state_offset, plan.rule.state_words() as u64)?,
            counters: region.keep_records(counters_offset, 1)?,
        })
    }

    #[inline]
    pub(crate) fn counters(&self) -> &LimitCounters {
        &self.counters[0]
    }

    /// The word that says how much of a concurrency limit is in use.
    pub(crate) fn in_use(&self) -> Option<&AtomicU64> {
        if self.kind == Kind::Concurrency {
            self.state.first()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn assess(&self, now: Now, cost: u64) -> Assessment {
        self.rule.assess(&StateWords(&self.state), now, cost)
    }

    #[inline]
    pub(crate) fn mark(&self, now: Now) -> Mark {
        self.rule.mark(&StateWords(&self.state), now)
    }

    /// Takes the cost if the limit admits it, and says how the limit stands then.
    #[inline]
    pub(crate) fn take(
        &self,
        transaction: &mut Transaction<'_>,
        now: Now,
        cost: u64,
    ) -> Result<Mark, Assessment> {
        let words = &self.state;
        self.rule
            .take(&mut JournalledState { words, transaction }, now, cost)
    }

    /// Charges usage that has already happened, whatever the limit says to it.
    pub(crate) fn charge(&self, transaction: &mut Transaction<'_>, now: Now, cost: u64) {
        self.rule.charge(
            &mut JournalledState {
                words: &self.state,
                transaction,
            },
            now,
            cost,
        );
    }

    /// Charges for a use `delay` nanoseconds from now.
    pub(crate) fn charge_ahead(&self, transaction: &mut Transaction<'_>, now: Now, delay: u64, cost: u64) {
        let words = &self.state;
        self.rule
            .charge_ahead(&mut JournalledState { words, transaction }, now, delay, cost);
    }

    /// Gives back what a permit reserved and did not use, of a decision at `decided_at`; answers the units really
    /// given back.
    pub(crate) fn refund_unused(
        &self,
        transaction: &mut Transaction<'_>,
        now: Now,
        unused: u64,
        reserved: &Decided,
        decided_at: u64,
    ) -> u64 {
        let elapsed = now.monotonic.saturating_sub(decided_at);
        let left = self.rule.left(reserved.mark, elapsed, reserved.figure);
        self.refund(transaction, now, unused, left, decided_at)
    }

    /// Gives back what a dead holder had reserved at `decided_at`; answers the units really given back.
    pub(crate) fn refund_dead(
        &self,
        transaction: &mut Transaction<'_>,
        now: Now,
        reserved: u64,
        decided_at: u64,
    ) -> u64 {
        let elapsed = now.monotonic.saturating_sub(decided_at);
        let left = self.rule.left_at_least(elapsed, reserved);
        self.refund(transaction, now, reserved, left, decided_at)
    }

    fn refund(
        &self,
        transaction: &mut Transaction<'_>,
        now: Now,
        amount: u64,
        left: u128,
        decided_at: u64,
    ) -> u64 {
        // A reset has replenished what was reserved before it.
        if decided_at <= self.counters().reset_at.load(Ordering::Relaxed) {
            return 0;
        }
        let words = &self.state;
        self.rule
            .refund(&mut JournalledState { words, transaction }, now, amount, left)
    }

    #[inline]
    pub(crate) fn give_back(&self, transaction: &mut Transaction<'_>, amount: u64) {
        self.rule.give_back(
            &mut JournalledState {
                words: &self.state,
                transaction,
            },
            amount,
        );
    }

    /// Replenishes the limit at `instant`. Not journalled: it can be repeated.
    pub(crate) fn reset(&self, instant: u64) {
        self.counters().reset_at.store(instant, Ordering::Relaxed);
        self.rule.reset(&mut RepeatableState(&self.state));
    }
}
