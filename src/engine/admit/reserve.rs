//! Reservations: charging now for a use later.

use std::cell::Cell;

use crate::choices::Kind;
use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::rules::set_outline::SetOutline;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::resolution::Cause;
use crate::error::{Error, RequestError};
use crate::limit::{Assessment, RuleOperations};
use crate::shm::layout::row::Row;

/// The result of an attempt to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// Charged. May be used after this many nanoseconds.
    After(u64),
    Refused,
}

impl SegmentEngine {
    /// Charges everything that `costs` names if all of it is available within `max_delay` nanoseconds.
    pub(crate) fn reserve(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        max_delay: u64,
    ) -> Result<Reserved, Box<Error>> {
        let set = target.set;
        if let Some(index) = set.first_unreservable(costs) {
            return Err(Box::new(Error::Request(RequestError::NotReservable {
                set: set.name.to_string(),
                limit: set.limit_name(index),
            })));
        }
        let delay = Cell::new(0);
        let admitted = self.decide_at_once(target.shard(), decision, |decision, attempt| {
            self.try_reserve(target, costs, decision, max_delay, &delay, attempt)
        })?;
        Ok(if admitted {
            Reserved::After(delay.get())
        } else {
            Reserved::Refused
        })
    }

    /// Charges the costs as of the instant at which all of them are available, and stores the nanoseconds until then in
    /// `delay`.
    fn try_reserve(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        max_delay: u64,
        delay: &Cell<u64>,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let mut locked = self.lock(target.shard(), LockFor::Decide, LockWait::Timeout)?;
        let row = match locked.row_for(target.key, costs)? {
            Ok(row) => row,
            Err(no_row) => return locked.without_a_row(no_row, costs, decision, attempt),
        };
        locked.serve_head(row.index)?;
        let cause = if locked.shard.has_no_waiters(row) {
            Cause::Limits
        } else {
            Cause::Behind(None)
        };
        let possible = locked.delay_of(row, costs).filter(|delay| *delay <= max_delay);
        match (cause, possible) {
            (Cause::Limits, Some(possible)) => {
                delay.set(possible);
                let admission = Admission {
                    ahead: Some(possible),
                    ..Admission::of(row.into(), costs)
                };
                // No hold: nothing of a reservation is held.
                locked.take_all(&admission, decision, attempt)
            }
            _ => locked.refuse(row.into(), costs, cause, decision, attempt),
        }
    }
}

impl SetOutline {
    /// The first limit asked for something that cannot be charged ahead of its use: concurrency is held from now on,
    /// what a budget will be debited is not known yet, and what all keys have together would be kept from those that
    /// wait for it.
    fn first_unreservable(&self, costs: &Costs) -> Option<usize> {
        costs
            .iter()
            .find(|(index, cost)| {
                self.limits.get(*index).is_some_and(|limit| match limit.kind {
                    _ if self.is_overall(*index) => *cost > 0,
                    Kind::Rate | Kind::Calls => false,
                    Kind::Concurrency => *cost > 0,
                    Kind::Budget => true,
                })
            })
            .map(|(index, _)| index)
    }
}

impl LockedShard<'_> {
    /// Nanoseconds until all of the costs are available; `None` if they cannot be charged now for that instant.
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
        // If it is used later, a cost may belong to a later window than the one that would be charged now.
        (delay == 0 || all_reach_ahead).then_some(delay)
    }
}
