//! The short way of most requests: what they take of is no more than a rule, its state, and where it is held a hold. Whatever
//! else there is to be looked at, such as a lease of the host that runs low, is left to the way that all requests can go, under the
//! same lock.

use super::acquire::{Answer, Attempt};
use super::decided::Decided;
use super::decision::{Costs, Decision, RefusalReason};
use crate::engine::definition::own_capacities::LimitMask;
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::set_engine::ShardAt;
use crate::limit::{Assessment, Mark};
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::Transaction;

/// What the limits came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Admitted,
    Refused,
    /// It is to be decided in the other way.
    Undecided,
}

impl ShardAt<'_> {
    /// Decides what is asked for by the process that is `owner`, unless it is to be decided in the other way. If so, nothing was
    /// changed. The caller holds the lock, and has seen to what there was to be seen to.
    #[inline(always)]
    pub(in crate::engine) fn decide_plain(
        &self,
        owner: u64,
        key: Option<&KeyIdentity>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let shard = self.shard;
        if costs.limits.0 & !shard.plain.0 != 0 {
            return None;
        }
        decision.begin(shard.index(), shard.definition(), self.now.monotonic, owner);
        match key {
            None => self.decide_plain_on(&shard.only_row(), costs, decision, attempt),
            Some(key) => self.decide_plain_on(&shard.find_row_of(key.fingerprint)?, costs, decision, attempt),
        }
    }

    #[inline(always)]
    fn decide_plain_on(
        &self,
        row: &Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        if !self.shard.has_no_waiters(*row) || self.shard.throttled_for(*row, self.now) != 0 {
            return None;
        }
        let is_held = u32::from(costs.limits.0) & self.shard.set.held_mask != 0;
        let is_by_backlogs = !is_held && self.shard.backlogs.have_all(costs.limits);
        let taken = if is_by_backlogs {
            self.take_backlogs(row, costs, decision)
        } else if is_held {
            self.take_and_hold(row, costs, decision)
        } else {
            self.take_by_rules(row, costs, decision)
        };
        match taken {
            Taken::Admitted => {
                decision.note_key(*row);
                Some(Answer::Admitted)
            }
            // It is to be noted how much was asked for.
            Taken::Refused if costs.limits.0 & self.shard.leased.0 != 0 => None,
            Taken::Refused => {
                let answer = is_by_backlogs.then(|| self.refuse_backlogs(row, costs, decision, attempt));
                Some(
                    answer
                        .flatten()
                        .unwrap_or_else(|| self.refuse_plain(row, costs, decision, attempt)),
                )
            }
            Taken::Undecided => None,
        }
    }

    #[inline(never)]
    fn take_backlogs(&self, row: &Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let states = row.states();
        let take = |index: usize, cost, transaction: &mut Transaction<'_>| {
            let limit = self.shard.backlogs.get(index)?;
            let mark = limit.take(states, transaction, self.now, cost)?;
            Some((mark, limit.is_near(mark)))
        };
        self.take_each_by(take, |_, _| (), (row, LimitMask::default()), costs, decision)
    }

    #[inline(never)]
    fn take_by_rules(&self, row: &Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let take =
            |index, cost, transaction: &mut Transaction<'_>| self.take_by_rule(row, index, cost, transaction);
        self.take_each_by(take, |_, _| (), (row, self.shard.leased), costs, decision)
    }

    #[inline(never)]
    fn take_and_hold(&self, row: &Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        if !self.shard.takes_a_hold(costs) {
            return self.take_by_rules(row, costs, decision);
        }
        let free = self.shard.memory.find_free_hold();
        // A label is written once the hold is committed; whether others died is to be seen where no hold is free.
        if matches!(free, FreeHold::None | FreeHold::Damaged) || costs.label.is_some() {
            return Taken::Undecided;
        }
        let hold = |transaction: &mut Transaction<'_>, decision: &mut Decision| {
            let none_waived = LimitMask::default();
            let hold = self.take_hold(transaction, *row, free, decision.owner, costs, none_waived);
            decision.set_hold(hold);
        };
        let take =
            |index, cost, transaction: &mut Transaction<'_>| self.take_by_rule(row, index, cost, transaction);
        self.take_each_by(take, hold, (row, self.shard.leased), costs, decision)
    }

    #[inline(always)]
    fn take_by_rule(
        &self,
        row: &Row<'_>,
        index: usize,
        cost: u64,
        transaction: &mut Transaction<'_>,
    ) -> Option<(Mark, bool)> {
        let limit = self.shard.limits.get(index)?;
        let mark = limit.take(*row, transaction, self.now, cost).ok()?;
        Some((mark, limit.is_near(mark)))
    }

    /// Takes of one limit after the other by `take`, which answers how it stands then and whether that is near its end, and
    /// lastly a hold by `hold`, if one is wanted. Those of the limits that may be `leased` are left undecided where they are near
    /// their end.
    #[inline(always)]
    fn take_each_by(
        &self,
        take: impl Fn(usize, u64, &mut Transaction<'_>) -> Option<(Mark, bool)>,
        hold: impl FnOnce(&mut Transaction<'_>, &mut Decision),
        (row, leased): (&Row<'_>, LimitMask),
        costs: &Costs,
        decision: &mut Decision,
    ) -> Taken {
        let mut near = LimitMask::default();
        let mut transaction = self.shard.memory.journal().begin();
        for (index, cost) in costs.iter() {
            let Some((mark, is_near)) = take(index, cost, &mut transaction) else {
                return Taken::Refused;
            };
            if is_near {
                near.insert(index);
            }
            decision.note(Decided::charged(mark, cost));
        }
        if near.0 & leased.0 != 0 {
            // More is to be asked for: the other way has that done.
            return Taken::Undecided;
        }
        hold(&mut transaction, decision);
        // Only now, because what is counted is not undone.
        for (index, cost) in costs.iter() {
            let counters = self.shard.counters(index);
            transaction.count(&counters.admitted, 1);
            transaction.count(&counters.taken, cost);
            if near.contains(index) {
                transaction.count(&counters.near, 1);
            }
        }
        transaction.count(&self.shard.memory.control().admitted, 1);
        self.count_on_rows((*row).into(), true);
        match transaction.commit() {
            Ok(()) => Taken::Admitted,
            Err(_) => Taken::Undecided,
        }
    }

    #[inline(never)]
    fn refuse_plain(
        &self,
        row: &Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Answer {
        // The caller is answered after the lock is released: the answer allocates.
        if let Some(impossible) = self.assess_all((*row).into(), costs, decision) {
            decision.note_impossible(impossible);
            return Answer::Impossible;
        }
        if let Some(answer) = self.not_yet_refused(costs, decision, attempt) {
            return answer;
        }
        self.count_refusal((*row).into(), decision);
        Answer::Refused
    }

    /// As [`refuse_plain`](Self::refuse_plain), where no death of a holder would help and a rate is what binds. None where a cost
    /// never fits, which that says.
    #[inline(never)]
    fn refuse_backlogs(
        &self,
        row: &Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        decision.decided.clear();
        for (index, cost) in costs.iter() {
            let limit = self.shard.backlogs.get(index)?;
            let (assessment, mark) = limit.assess(row.states(), self.now, cost)?;
            if assessment == (Assessment::Refused { retry_after: None }) {
                return None;
            }
            decision.note(Decided::assessed(mark, assessment));
        }
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Some(Answer::MustWait);
        }
        self.count_refusal_for(RefusalReason::Rate, (*row).into(), decision);
        Some(Answer::Refused)
    }
}
