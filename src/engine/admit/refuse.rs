//! Refusing: why, for how long, and which counters go up.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use crate::choices::Kind;
use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::rules::set_outline::SetOutline;
use crate::engine::shard::key_table::{KeyCounts, NoRow};
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, Decision, Details, Impossible, RefusalReason, SHORTEST_WAIT};
use crate::engine::terms::resolution::Cause;
use crate::error::{Error, RequestError};
use crate::limit::{Mark, Shortage};
use crate::shm::layout::row::{Row, Rows};
use crate::shm::lock::journal::count;

impl RuledShard<'_> {
    /// The first cost that is above the most its limit ever admits at once for the key of a row, with that maximum.
    /// This is an error, not a refusal. No limit takes such a cost, so it is enough to check once something was
    /// refused.
    pub(in crate::engine) fn impossible_cost(&self, row: Row<'_>, costs: &Costs) -> Option<Impossible> {
        costs
            .iter()
            .filter(|(index, _)| self.limits.get(*index).is_none_or(|limit| !limit.shadow))
            .find_map(|(limit, cost)| {
                let rules = self.limits.get(limit);
                let max = rules.map_or(0, |rules| rules.of_request(row, costs).burst);
                (cost > max).then_some(Impossible::Cost { limit, cost, max })
            })
    }

    /// Whether the death of a holder would help. It frees holds, concurrency and batches of credit, and may free a row
    /// or move the queue on.
    fn is_refused_by_holders(&self, costs: &Costs, cause: Cause, decision: &Decision) -> bool {
        let by_what_is_held = |index: usize| self.set.held_mask & (1 << index) != 0;
        let mut decided = decision.iter();
        matches!(
            cause,
            Cause::HoldsFull | Cause::NoRow(_) | Cause::Behind(_) | Cause::QueueFull(_)
        ) || (u32::from(costs.limits.0) & self.set.held_mask != 0
            && decided.any(|(index, decided)| decided.wait() > 0 && by_what_is_held(index)))
    }
}

impl Shard<'_> {
    /// The error for what can never be met. It allocates, so it must not be made under the lock.
    #[cold]
    pub(in crate::engine) fn never_admissible(&self, impossible: Impossible) -> Box<Error> {
        match impossible {
            Impossible::Cost { limit, cost, max } => {
                Box::new(Error::Request(RequestError::NeverAdmissible {
                    set: self.set.name.to_string(),
                    limit: self.set.limit_name(limit),
                    cost,
                    max,
                }))
            }
            Impossible::Capacity(refused) => self.cannot_override(refused),
        }
    }
}

impl SetEngine {
    /// Why a request was refused.
    #[inline]
    pub(crate) fn refusal_reason(&self, decision: &Details) -> RefusalReason {
        let reason = self.reason_by_kind(decision);
        if !self.has_lease_room {
            return reason;
        }
        match self.shortage(decision, reason) {
            None => reason,
            Some(Shortage::Exhausted) => RefusalReason::Lease,
            Some(Shortage::Pending) => RefusalReason::LeasePending,
            Some(Shortage::StoreOut) => RefusalReason::StoreOut,
        }
    }

    /// Why too little is leased of the limit that binds, if that is why it refused.
    #[cold]
    #[inline(never)]
    fn shortage(&self, decision: &Details, reason: RefusalReason) -> Option<Shortage> {
        let is_by_limit = matches!(
            reason,
            RefusalReason::Rate | RefusalReason::Concurrency | RefusalReason::Budget
        );
        let binding = decision.binding().filter(|_| is_by_limit);
        let rules = self
            .rules
            .find(|rules| decision.definition.is_of(rules.generation));
        let limit = binding
            .zip(rules)
            .and_then(|((index, _), rules)| rules.limits.get(index));
        let limit = limit?;
        let decided = decision.iter().find(|(index, _)| *index == limit.index);
        limit.shortage_of(decided.map_or_else(Mark::default, |(_, decided)| decided.mark))
    }
}

impl SetOutline {
    /// The reason, according to the kind of the limit that binds.
    #[inline]
    fn reason_by_kind(&self, decision: &Details) -> RefusalReason {
        let cause = decision.cause();
        if let Cause::QueueFull(_) = cause {
            return RefusalReason::QueueFull;
        }
        let binding = decision.binding().and_then(|(index, _)| self.limits.get(index));
        match binding.map(|limit| limit.kind) {
            None if cause == Cause::HoldsFull => RefusalReason::HoldsFull,
            None if matches!(cause, Cause::Throttled(_)) => RefusalReason::Throttled,
            None => RefusalReason::TableFull,
            Some(Kind::Concurrency) => RefusalReason::Concurrency,
            Some(Kind::Budget) => RefusalReason::Budget,
            Some(Kind::Rate | Kind::Calls) => RefusalReason::Rate,
        }
    }
}

impl ShardAt<'_> {
    /// Notes in `decision`, which has room for it, how each limit that is asked answers its cost. Returns the first
    /// cost that can never be met, if there is one: the same as [`RuledShard::impossible_cost`].
    pub(in crate::engine) fn assess_all(
        &self,
        rows: Rows<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Option<Impossible> {
        let shard = self.shard.of_request(rows.first(), costs);
        decision.definition = shard.definition();
        decision.decided.clear();
        if !shard.differs_by_key {
            return self.assess_each(|index, _| shard.limits.get(index), rows, costs, decision);
        }
        let limit = |index, row| {
            let limit: Option<&LimitRules> = shard.limits.get(index);
            limit.map(|limit| limit.of_request(row, costs))
        };
        let impossible = self.assess_each(limit, rows, costs, decision);
        shard.note_own_capacities(rows.first(), costs, decision);
        impossible
    }

    #[inline(always)]
    fn assess_each<'a, L: Deref<Target = LimitRules>>(
        &self,
        limit_of: impl Fn(usize, Row<'a>) -> Option<L>,
        rows: Rows<'a>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Option<Impossible> {
        let mut impossible = None;
        for (index, cost) in costs.iter() {
            // Limits that count networks have the same rules on every row.
            let Some(limit) = limit_of(index, rows.first()) else {
                continue;
            };
            if cost > limit.burst && !limit.shadow && impossible.is_none() {
                impossible = Some(Impossible::Cost {
                    limit: index,
                    cost,
                    max: limit.burst,
                });
            }
            let (assessment, mark) = limit.verdict_and_mark(rows.of(limit.level), self.now, cost);
            decision.note(Decided::assessed(mark, assessment));
        }
        impossible
    }
}

impl RuledShard<'_> {
    fn refusal_counter(&self, reason: RefusalReason) -> &AtomicU64 {
        let control = self.memory.control();
        match reason {
            RefusalReason::Rate => &control.refused_rate,
            RefusalReason::Concurrency => &control.refused_concurrency,
            RefusalReason::Budget => &control.refused_budget,
            RefusalReason::TableFull => &control.refused_table_full,
            RefusalReason::HoldsFull => &control.refused_holds_full,
            RefusalReason::QueueFull => &control.refused_queue_full,
            RefusalReason::Throttled => &control.refused_throttled,
            RefusalReason::Lease => &control.refused_lease,
            RefusalReason::LeasePending => &control.refused_lease_pending,
            RefusalReason::StoreOut => &control.refused_store_out,
        }
    }
}

impl LockedShard<'_> {
    /// The answer to a request that the limits do not admit, if that is not a refusal yet: it is time to look for dead
    /// holders first, or the request can wait.
    #[inline(always)]
    fn not_yet_refused(
        &self,
        costs: &Costs,
        cause: Cause,
        decision: &Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let may_look = matches!(attempt, Attempt::First | Attempt::BeforeWaiting);
        if may_look && self.shard.is_refused_by_holders(costs, cause, decision) && self.shard.reclaim_is_due()
        {
            return Some(Answer::RetryAfterReclaim);
        }
        matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting).then_some(Answer::MustWait)
    }

    /// Counts a refusal that has been decided.
    #[inline(always)]
    pub(in crate::engine) fn count_refusal(&self, rows: Rows<'_>, decision: &Decision) {
        let reason = self.shard.set.refusal_reason(decision);
        count(self.shard.refusal_counter(reason), 1);
        for (index, decided) in decision.iter() {
            if decided.wait() > 0 {
                count(&self.shard.counters(index).refused, 1);
            }
        }
        self.count_on_rows(rows, KeyCounts::REFUSED);
    }

    /// Refuses for `cause`, which is refined here, unless this is not a refusal yet.
    #[inline(never)]
    pub(in crate::engine) fn refuse(
        &self,
        rows: Rows<'_>,
        costs: &Costs,
        cause: Cause,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        // The error allocates, so it is made after the lock is released.
        if let Some(impossible) = self.assess_all(rows, costs, decision) {
            decision.note_impossible(impossible);
            return Ok(Answer::Impossible);
        }
        if self.shard.set.has_lease_room {
            self.note_unmet(rows.first(), costs);
            let is_first = attempt == Attempt::First && matches!(cause, Cause::Limits);
            if is_first && self.engine.cold_wait_at(self.at, rows.first(), costs) > 0 {
                return Ok(Answer::AwaitsLease);
            }
        }
        if let Some(answer) = self.not_yet_refused(costs, cause, decision, attempt) {
            return Ok(answer);
        }
        let late = match attempt {
            Attempt::Late(ticket) => Some(ticket),
            _ => None,
        };
        decision.refuse(self.final_cause(rows.first(), costs, cause, late)?);
        self.count_refusal(rows, decision);
        Ok(Answer::Refused)
    }

    /// What a refused request waits for besides its own limits: for the throttle to end, or for those ahead of it in
    /// the queue to be served, whichever takes longer.
    #[inline(always)]
    fn final_cause(
        &self,
        row: Row<'_>,
        costs: &Costs,
        cause: Cause,
        late: Option<u64>,
    ) -> Result<Cause, Box<Error>> {
        let throttled_for = self.throttles(row, costs);
        let is_behind = match cause {
            Cause::Behind(_) | Cause::QueueFull(_) => true,
            // Nobody has checked yet whether others wait.
            Cause::Limits => throttled_for > 0 && !self.shard.has_no_waiters(row),
            Cause::HoldsFull | Cause::NoRow(_) | Cause::Throttled(_) => false,
        };
        let ahead = if is_behind {
            self.binding_behind(row, costs, late)?
        } else {
            None
        };
        let throttled = NonZeroU64::new(throttled_for)
            .filter(|_| matches!(cause, Cause::Limits | Cause::Behind(_)))
            .filter(|_| ahead.is_none_or(|(_, wait)| wait <= throttled_for));
        if let Some(throttled) = throttled {
            return Ok(Cause::Throttled(throttled));
        }
        if !is_behind {
            return Ok(cause);
        }
        // If nothing blocks the first of them any more, it is about to be served. Any limit that is asked can be named.
        let about_to_be_served = || costs.limits.iter().next().map(|any| (any, SHORTEST_WAIT));
        let ahead = ahead
            .or_else(about_to_be_served)
            .map(|(limit, wait)| (limit, wait.max(throttled_for)));
        Ok(match cause {
            Cause::QueueFull(_) => Cause::QueueFull(ahead),
            _ => Cause::Behind(ahead),
        })
    }

    /// Refuses a request whose key has no row. It cannot wait, because there is no queue to wait in. If every limit
    /// that is asked is in shadow, it is admitted.
    #[cold]
    pub(in crate::engine) fn without_a_row(
        &self,
        no_row: NoRow,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let room_in = match no_row {
            NoRow::Full { room_in } => room_in,
            NoRow::Refused(refused) => {
                decision.note_impossible(Impossible::Capacity(refused));
                return Ok(Answer::Impossible);
            }
        };
        if self.shard.is_in_shadow(costs) {
            let admission = Admission {
                waived: costs.limits,
                ..Admission::of(self.shard.absent_row().into(), costs)
            };
            return self.take_all(&admission, decision, Attempt::Last);
        }
        let attempt = match attempt {
            Attempt::First | Attempt::BeforeWaiting => Attempt::First,
            Attempt::Last | Attempt::Late(_) | Attempt::Waiting => Attempt::Last,
        };
        let cause = Cause::NoRow(room_in.and_then(NonZeroU64::new));
        self.refuse(self.shard.absent_row().into(), costs, cause, decision, attempt)
    }
}
