//! Batches of one limit, taken to be spent elsewhere, without the lock.

use crate::engine::admit::acquire::{Answer, Attempt};
use crate::engine::admit::decided::Decided;
use crate::engine::admit::decision::{Costs, Decision, Impossible, Stage};
use crate::engine::definition::definition_bits::DefinitionBits;
use crate::engine::settle::refund::{Origin, ReservedBy};
use crate::engine::shard::locked_shard::LockWait;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::Shard;
use crate::error::Error;
use crate::limit::{Mark, RuleOperations};

/// Of what could be taken, the part that one batch may be, unless a smaller one than was wished for at least.
const SHARE: u64 = 16;

/// How much to take of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchWish {
    pub(crate) limit: usize,
    /// What is asked for, of which a part may be left from before.
    pub(crate) asked: u64,
    /// Less than this is of no use.
    pub(crate) needed: u64,
    /// Where the limit has little left, this much and no more, or what there is.
    pub(crate) min: u64,
    /// Where it has plenty.
    pub(crate) max: u64,
}

/// A batch that was taken and charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenBatch {
    pub(crate) units: u64,
    /// Nanoseconds after which the limit has forgotten the batch, where it counts in windows.
    pub(crate) lasts: Option<u64>,
    /// How the limit stood just after.
    mark: Mark,
    /// On the segment clock.
    taken_at: u64,
    definition: DefinitionBits,
}

/// What became of a wish.
#[derive(Debug)]
pub(crate) enum BatchAnswer {
    Taken(TakenBatch),
    Refused(Decision),
}

impl SegmentEngine {
    /// Takes a batch of one limit: as much as is wished for and the limit has, at once. No process that waits in the
    /// queue is overtaken. It is charged for good: the death of this process gives nothing back.
    pub(crate) fn take_batch(&self, shard: Shard<'_>, wish: BatchWish) -> Result<BatchAnswer, Box<Error>> {
        let costs = Costs::of_one(wish.limit, wish.needed);
        let mut decision = Decision::pending(&costs, 0);
        decision.owner = self.membership.owner()?;
        let answer = match self.decide_batch(shard, wish, &costs, &mut decision, Attempt::First)? {
            Err(Answer::RetryAfterReclaim) => {
                self.reclaim_if_due(shard, LockWait::Timeout)?;
                self.decide_batch(shard, wish, &costs, &mut decision, Attempt::Last)?
            }
            answer => answer,
        };
        match answer {
            Ok(batch) => Ok(BatchAnswer::Taken(batch)),
            Err(Answer::Impossible) => {
                let impossible = match decision.impossible() {
                    Impossible::Cost { limit, max, .. } => Impossible::Cost {
                        limit,
                        cost: wish.asked,
                        max,
                    },
                    of_capacity => of_capacity,
                };
                Err(shard.never_admissible(impossible))
            }
            Err(_) => Ok(BatchAnswer::Refused(decision)),
        }
    }

    /// Gives back what was not spent of a batch, as far as the algorithm refunds; answers the units really given back.
    pub(crate) fn return_batch(
        &self,
        shard: Shard<'_>,
        limit: usize,
        batch: &TakenBatch,
        unspent: u64,
        wait: LockWait,
    ) -> Result<u64, Box<Error>> {
        let mut locked = self.lock_to_give_back(shard, wait)?;
        let shard = locked.shard;
        let Some(limit) = shard.limits.get(limit) else {
            return Ok(0);
        };
        let taken = Decided::charged(batch.mark, batch.units);
        let row = shard.only_row();
        let origin = Origin {
            instant: batch.taken_at,
            definition: Some(batch.definition),
            row: row.reference(),
            units_after: 0,
            capacity: ReservedBy::Own(None),
        };
        let mut transaction = shard.memory.journal().begin();
        let refunded =
            locked
                .at_its_instant()
                .refund_unused(&mut transaction, limit, row, unspent, &taken, origin);
        transaction.count(&shard.counters(limit.index).refunded, refunded);
        shard.commit(&mut transaction)?;
        // It is given back, whatever is wrong with the queue: the next operation says that.
        let _ = locked.serve_next(row.index);
        Ok(refunded)
    }

    fn decide_batch(
        &self,
        shard: Shard<'_>,
        wish: BatchWish,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Result<TakenBatch, Answer>, Box<Error>> {
        let mut locked = self.lock(shard)?;
        let shard = locked.shard;
        let row = shard.only_row();
        decision.set_stage(Stage::Reserved);
        locked.serve_head(row.index)?;
        if !shard.has_no_waiters(row) {
            decision.set_stage(Stage::Behind);
            return locked.refuse(row.into(), costs, decision, attempt).map(Err);
        }
        let Some(limit) = shard.limits.get(wish.limit) else {
            return locked.refuse(row.into(), costs, decision, attempt).map(Err);
        };
        if wish.asked > limit.burst {
            decision.note_impossible(Impossible::Cost {
                limit: wish.limit,
                cost: wish.asked,
                max: limit.burst,
            });
            return Ok(Err(Answer::Impossible));
        }
        if locked.throttles(row, costs) > 0 {
            return locked.refuse(row.into(), costs, decision, attempt).map(Err);
        }
        let now = locked.now;
        let remaining = limit.rule.standing(limit.mark(row, now)).remaining;
        let units = wish
            .max
            .min(wish.min.max(remaining / SHARE))
            .min(remaining)
            .max(wish.needed);
        let mut transaction = shard.memory.journal().begin();
        let Ok(mark) = limit.take(row, &mut transaction, now, units) else {
            drop(transaction);
            return locked.refuse(row.into(), costs, decision, attempt).map(Err);
        };
        transaction.count(&shard.counters(wish.limit).admitted, 1);
        transaction.count(&shard.counters(wish.limit).taken, units);
        transaction.count(&shard.memory.control().admitted, 1);
        shard.commit(&mut transaction)?;
        let counts_in_windows = !limit.rule.reaches_ahead();
        Ok(Ok(TakenBatch {
            units,
            lasts: counts_in_windows.then(|| limit.rule.standing(mark).reset_after),
            mark,
            taken_at: now.monotonic,
            definition: shard.definition(),
        }))
    }
}
