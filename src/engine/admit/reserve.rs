//! Charging now for what is done later.

use super::acquire::{Answer, Attempt, Target};
use super::decision::{Costs, Decided, Decision, LimitMask, Stage};
use crate::engine::definition::plan::Kind;
use crate::engine::definition::set_outline::SetOutline;
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::locked_shard::{LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::shard_memory::Row;
use crate::error::Error;
use crate::limit::{Assessment, RuleOperations};

/// What became of a wish to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// Charged; to be made use of after so many nanoseconds.
    After(u64),
    Refused,
}

impl SegmentEngine {
    /// Charges everything that `costs` names if all of it can be had within `max_delay` nanoseconds.
    pub(crate) fn reserve(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        max_delay: u64,
    ) -> Result<Reserved, Box<Error>> {
        let set = target.set;
        if let Some(index) = set.first_unreservable(costs) {
            return Err(Box::new(Error::NotReservable {
                set: set.name.to_string(),
                limit: set.limit_name(index),
            }));
        }
        match self.try_reserve(target, costs, decision, max_delay, Attempt::First)? {
            Some(reserved) => Ok(reserved),
            None => {
                self.reclaim_if_due(target.shard(), LockWait::Timeout)?;
                let reserved = self.try_reserve(target, costs, decision, max_delay, Attempt::Last)?;
                Ok(reserved.unwrap_or(Reserved::Refused))
            }
        }
    }

    /// `None` where it is worth a look for dead holders first.
    fn try_reserve(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        max_delay: u64,
        attempt: Attempt,
    ) -> Result<Option<Reserved>, Box<Error>> {
        decision.owner = self.membership.owner()?;
        let mut locked = self.lock(target.shard())?;
        let shard = locked.shard;
        let row = match locked.row_for(target.key, costs)? {
            Ok(row) => row,
            Err(no_row) => {
                return Ok(match locked.without_a_row(no_row, costs, decision, attempt)? {
                    Answer::RetryAfterReclaim => None,
                    Answer::Impossible => {
                        return Err(shard.unruled().never_admissible(decision.impossible()));
                    }
                    Answer::Admitted => Some(Reserved::After(0)),
                    _ => Some(Reserved::Refused),
                });
            }
        };
        locked.serve_head(row.index)?;
        decision.set_stage(Stage::Reserved);
        let mut free = None;
        if !shard.has_no_waiters(row) {
            decision.set_stage(Stage::Behind);
        } else if shard.takes_a_hold(costs) {
            match self.find_free_hold(shard)? {
                FreeHold::None => decision.set_stage(Stage::HoldsFull),
                found => free = Some(found),
            }
        }
        let delay = locked.delay_of(row, costs).filter(|delay| *delay <= max_delay);
        if let (Stage::Reserved, Some(delay)) = (decision.stage(), delay) {
            locked.charge_all(row, costs, free, decision, delay)?;
            return Ok(Some(Reserved::After(delay)));
        }
        Ok(match locked.refuse(row.into(), costs, decision, attempt)? {
            Answer::RetryAfterReclaim => None,
            Answer::Impossible => {
                return Err(shard.unruled().never_admissible(decision.impossible()));
            }
            _ => Some(Reserved::Refused),
        })
    }
}

impl SetOutline {
    /// The first limit of which something is asked that cannot be charged ahead of its use: what is held is held now,
    /// and what a budget will be debited is not known yet.
    fn first_unreservable(&self, costs: &Costs) -> Option<usize> {
        costs
            .iter()
            .find(|(index, cost)| {
                self.limits.get(*index).is_some_and(|limit| match limit.kind {
                    Kind::Rate | Kind::Calls => false,
                    Kind::Concurrency => *cost > 0,
                    Kind::Budget => true,
                })
            })
            .map(|(index, _)| index)
    }
}

impl LockedShard<'_> {
    /// After how many nanoseconds all of it can be had; `None` where that cannot be charged now.
    fn delay_of(&self, row: Row<'_>, costs: &Costs) -> Option<u64> {
        let mut delay = self.throttles(row, costs);
        let mut all_reach_ahead = true;
        let limits = &self.shard.of(row).rules.limits;
        for (index, cost) in costs.iter() {
            let limit = limits.get(index)?.of(row);
            all_reach_ahead &= cost == 0 || limit.rule.reaches_ahead();
            match limit.verdict(row, self.now, cost) {
                Assessment::Admissible => {}
                Assessment::Refused { retry_after } => delay = delay.max(retry_after?),
            }
        }
        // Used later, a cost belongs to a later window than the one that would be charged now.
        (delay == 0 || all_reach_ahead).then_some(delay)
    }

    fn charge_all(
        &self,
        row: Row<'_>,
        costs: &Costs,
        free: Option<FreeHold>,
        decision: &mut Decision,
        delay: u64,
    ) -> Result<(), Box<Error>> {
        let shard = self.shard.of(row);
        decision.begin(shard, self.now.monotonic);
        let mut transaction = shard.memory.journal().begin();
        for (index, cost) in costs.iter() {
            let Some(limit) = shard.limits.get(index) else {
                continue;
            };
            let limit = limit.of(row);
            if limit.shadow && limit.assess(row, self.now, cost) != Assessment::Admissible {
                transaction.add(&self.shard.counters(index).would_refuse, 1);
                decision.note(Decided {
                    mark: limit.mark(row, self.now),
                    cost_or_wait: 0,
                });
                continue;
            }
            // Charged as of the instant of its use: charged before, it would leave room for others at that instant.
            limit.charge_ahead(row, &mut transaction, self.now, delay, cost);
            transaction.add(&self.shard.counters(index).admitted, 1);
            transaction.add(&self.shard.counters(index).taken, cost);
            decision.note(Decided {
                mark: limit.mark(row, self.now),
                cost_or_wait: cost,
            });
        }
        if let Some(free) = free {
            decision.set_hold(self.take_hold(
                &mut transaction,
                row,
                free,
                decision.owner,
                costs,
                LimitMask::default(),
            ));
        }
        decision.note_key(row);
        shard.note_own_capacities(row, costs, decision);
        transaction.add(&self.shard.memory.control().admitted, 1);
        self.count_on_rows(&mut transaction, row.into(), true);
        self.shard.commit(transaction)?;
        self.keep_label(decision, costs);
        Ok(())
    }
}
