//! Charging now for what is done later.

use super::acquire::{Attempt, Costs, Decided, Decision, Stage};
use super::hold::FreeHold;
use super::plan::Kind;
use super::segment::{LockedSet, SegmentEngine, SetEngine};
use crate::error::Error;
use crate::limit::Assessment;

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
        set: &SetEngine,
        costs: &Costs,
        decision: &mut Decision,
        max_delay: u64,
    ) -> Result<Reserved, Box<Error>> {
        if let Some(index) = set.first_unreservable(costs) {
            return Err(Box::new(Error::NotReservable {
                set: set.plan.name.clone(),
                limit: set.limit_name(index),
            }));
        }
        if set.impossible_cost(costs).is_some() {
            return Err(set.never_admissible(costs));
        }
        decision.owner = self.membership.owner()?;
        let mut locked = self.lock(set)?;
        locked.serve_head()?;
        if !set.nobody_waits() {
            decision.stage = Stage::Behind;
            locked.refuse(costs, decision, Attempt::Last)?;
            return Ok(Reserved::Refused);
        }
        decision.stage = Stage::Reserved;
        let free = if set.takes_a_hold(costs) {
            Some(self.find_free_hold(set)?)
        } else {
            None
        };
        if free == Some(FreeHold::None) {
            decision.stage = Stage::TableFull;
        }
        match locked.delay_of(costs).filter(|delay| *delay <= max_delay) {
            Some(delay) if decision.stage == Stage::Reserved => {
                locked.charge_all(costs, free, decision, delay)?;
                Ok(Reserved::After(delay))
            }
            _ => {
                locked.refuse(costs, decision, Attempt::Last)?;
                Ok(Reserved::Refused)
            }
        }
    }
}

impl SetEngine {
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

impl LockedSet<'_> {
    /// After how many nanoseconds all of it can be had; `None` where that cannot be charged now.
    fn delay_of(&self, costs: &Costs) -> Option<u64> {
        let mut delay = 0;
        let mut all_reach_ahead = true;
        for (index, cost) in costs.iter() {
            let limit = self.set.limits.get(index)?;
            all_reach_ahead &= cost == 0 || limit.rule.reaches_ahead();
            match limit.assess(self.now, cost) {
                Assessment::Admissible => {}
                Assessment::Refused { retry_after } => delay = delay.max(retry_after?),
            }
        }
        // Used later, a cost belongs to a later window than the one that would be charged now.
        (delay == 0 || all_reach_ahead).then_some(delay)
    }

    fn charge_all(
        &self,
        costs: &Costs,
        free: Option<FreeHold>,
        decision: &mut Decision,
        delay: u64,
    ) -> Result<(), Box<Error>> {
        decision.begin(decision.owner, self.now.monotonic);
        let mut transaction = self.set.memory.journal().begin();
        for (index, cost) in costs.iter() {
            let Some(limit) = self.set.limits.get(index) else {
                continue;
            };
            // Charged as of the instant of its use: charged before, it would leave room for others at that instant.
            limit.charge_ahead(&mut transaction, self.now, delay, cost);
            transaction.add(&limit.counters().admitted, 1);
            transaction.add(&limit.counters().taken, cost);
            decision.note(Decided {
                mark: limit.mark(self.now),
                figure: cost,
            });
        }
        if let Some(free) = free {
            decision.set_hold(self.take_hold(&mut transaction, free, decision.owner, costs));
        }
        transaction.add(&self.set.memory.control().admitted, 1);
        transaction
            .commit()
            .map_err(|overflow| self.set.internal_error(overflow))
    }
}
