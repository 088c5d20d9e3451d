//! The fast path: requests that only take from the states of plain limits, and need at most one hold.
//!
//! They are decided under the bare lock, with copies that stay in registers, because they leave no work for after the
//! unlock. If anything is not plain, such as a lease that is nearly spent, a tier, credit or a queue of waiters, the
//! request is left [undecided](Plain::Undecided). The general path then decides it; it charges by the same
//! [loop](crate::engine::admit::charge) and gives the same answer.
//!
//! Most requests ask for a single limit that is a plain backlog, or that has enough leased. They skip the loop and
//! take about half as many instructions. Such a request nearly always changes a single word, with one store that either
//! happens or does not, so there is nothing to journal and nothing to undo.

use std::sync::atomic::Ordering;

use crate::choices::Scope;
use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::{Admission, Charged, Charges};
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::key_table::KeyCounts;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::resolution::Cause;
use crate::limit::Assessment;
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::{LoneChange, Transaction, count};

/// The result of the fast path.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum Plain<'a> {
    Decided(Answer),
    /// The limits do not admit the request on this row. Nothing has been counted.
    Refused(Row<'a>),
    /// The general path has to decide. Nothing has been taken.
    Undecided,
}

/// Whether the costs were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Admitted,
    Refused,
    Undecided,
}

impl<'a> ShardAt<'a> {
    /// Decides a request of the process `owner`, if it is plain. At the [first](Attempt::First) attempt the decision
    /// must be pending.
    #[inline(always)]
    pub(in crate::engine) fn decide_plain(
        self,
        owner: u64,
        key: Option<&KeyIdentity>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Plain<'a> {
        let Self { shard, now } = self;
        let is_by_backlogs = shard.rules.backlogs.have_all(costs.limits);
        if !is_by_backlogs && costs.limits.0 & !shard.rules.plain.0 != 0 {
            return Plain::Undecided;
        }
        let row = match key {
            None => shard.only_row(),
            Some(key) => match shard.find_row_of(key.fingerprint) {
                None => return Plain::Undecided,
                Some(row) => row,
            },
        };
        // A set without keys has no overall limits, and pays nothing for them.
        let is_held_up = match key {
            Some(_) if shard.set.has_overall() => shard.at(now).is_held_up_by_any_key(row),
            _ => shard.at(now).is_held_up(row),
        };
        if is_held_up {
            return Plain::Undecided;
        }
        let is_pending = attempt == Attempt::First;
        decision.begin(
            shard.index(),
            shard.definition(),
            now.monotonic,
            owner,
            is_pending,
        );
        let taken = if !is_by_backlogs {
            shard.at(now).take_by_rules(owner, row, costs, decision)
        } else if let Some(index) = costs.limits.only() {
            match shard.at(now).take_backlog(index, row, costs, decision) {
                Taken::Refused => {
                    let at = shard.at(now);
                    let refused = at.refuse_backlog(index, row, costs, decision, attempt);
                    return refused.map_or(Plain::Refused(row), Plain::Decided);
                }
                taken => taken,
            }
        } else {
            shard.at(now).take_backlogs(row, costs, decision)
        };
        match taken {
            Taken::Admitted => Plain::Decided(Answer::Admitted),
            Taken::Refused => Plain::Refused(row),
            Taken::Undecided => Plain::Undecided,
        }
    }

    /// Whether others wait for the row, or it admits nothing for now.
    #[inline(always)]
    fn is_held_up(self, row: Row<'_>) -> bool {
        !self.shard.has_no_waiters(row) || self.shard.row_throttled_for(row, self.now) != 0
    }

    /// Whether anybody waits, or all keys are throttled. Kept out of line, so that other sets do not pay for it.
    #[inline(never)]
    fn is_held_up_by_any_key(self, row: Row<'_>) -> bool {
        !self.shard.nobody_is_ahead(row) || self.shard.throttled_for(row, self.now) != 0
    }

    /// Whether what is asked of the limits that hosts share leaves enough of their leases.
    #[inline(always)]
    fn has_ample_leases(self, row: Row<'_>, leased: LimitMask, costs: &Costs) -> bool {
        leased.iter().all(|index| {
            let limit = self.shard.rules.limits.get(index);
            let cost = costs.amounts[index % MAX_LIMITS];
            limit.is_some_and(|limit| limit.has_ample_lease(row, self.now, cost))
        })
    }

    /// Takes from a single backlog, the only limit that is asked.
    #[inline(always)]
    fn take_backlog(self, index: usize, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let Some(limit) = self.shard.rules.backlogs.get(index) else {
            return Taken::Refused;
        };
        let cost = costs.amounts[index % MAX_LIMITS];
        let Some(words) = limit.words(row.states(Scope::Key)) else {
            return Taken::Refused;
        };
        let Some(mark) = limit.mark_if_admitted(words, self.now, cost) else {
            return Taken::Refused;
        };
        let memory = self.shard.memory;
        let change = (cost > 0).then(|| LoneChange::begin(&memory.control().journal));
        // Counted first, so that a death in between counts one too many rather than one too few.
        self.count_charge(index, cost, limit.is_near(mark), 1);
        self.count_admitted(row.into(), 1);
        if let Some(change) = change {
            let [first, second] = limit.state_at(self.now, mark);
            if words[1].load(Ordering::Relaxed) == second {
                change.change(&words[0], first);
            } else if memory.change_both(words, first, second).is_err() {
                return Taken::Undecided;
            }
        }
        let mut notes = decision.notes();
        notes.note(Decided::charged(mark, cost));
        notes.note_key(row, row.reference());
        Taken::Admitted
    }

    /// Takes from an ample lease, if only that limit is asked. That, too, changes a single word.
    #[inline(always)]
    fn take_lone_lease(self, index: usize, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let cost = costs.amounts[index % MAX_LIMITS];
        let limit = self.shard.rules.limits.get(index);
        let Some((limit, (word, spent, mark))) =
            limit.and_then(|limit| Some((limit, limit.take_amply(row, self.now, cost)?)))
        else {
            return Taken::Undecided;
        };
        let change = (cost > 0).then(|| LoneChange::begin(&self.shard.memory.control().journal));
        // Counted first, as for a backlog.
        self.count_charge(index, cost, limit.is_near(mark), 1);
        self.count_admitted(row.into(), 1);
        if let Some(change) = change {
            change.change(word, spent);
        }
        let mut notes = decision.notes();
        notes.note(Decided::charged(mark, cost));
        notes.note_key(row, row.reference());
        Taken::Admitted
    }

    /// Takes from several backlogs.
    #[inline(never)]
    fn take_backlogs(self, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let policy = |index: usize, cost, transaction: &mut Transaction<'_>| {
            let Some(limit) = self.shard.rules.backlogs.get(index) else {
                return Charged::Refused;
            };
            let mark = limit.take(row.states(Scope::Key), transaction, self.now, cost);
            Charged::by(mark, |mark| limit.is_near(mark))
        };
        self.take_by(policy, |_| None, row, costs, decision)
    }

    /// Takes from limits with any rules, and takes a hold if anything has to be given back.
    #[inline(never)]
    fn take_by_rules(self, owner: u64, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let leased = LimitMask(costs.limits.0 & self.shard.rules.leased.0);
        if let Some(index) = leased.only().filter(|_| leased == costs.limits) {
            return self.take_lone_lease(index, row, costs, decision);
        }
        // Whoever leaves little of a lease has to wake the process on duty.
        if !self.has_ample_leases(row, leased, costs) {
            return Taken::Undecided;
        }
        let policy = |index: usize, cost, transaction: &mut Transaction<'_>| {
            let Some(limit) = self.shard.rules.limits.get(index) else {
                return Charged::Refused;
            };
            let mark = limit.take(row, transaction, self.now, cost).ok();
            Charged::by(mark, |mark| limit.is_near(mark))
        };
        let free = if self.shard.set.takes_a_hold(costs) {
            match self.shard.memory.find_free_hold() {
                // Holders may have died, or the list needs a repair.
                FreeHold::None | FreeHold::Damaged => return Taken::Undecided,
                // The label is written after the hold is committed.
                _ if costs.label.is_some() => return Taken::Undecided,
                found => Some(found),
            }
        } else {
            None
        };
        let hold = |transaction: &mut Transaction<'_>| {
            self.take_hold(transaction, row, free?, owner, costs, LimitMask::default())
        };
        self.take_by(policy, hold, row, costs, decision)
    }

    #[inline(always)]
    fn take_by(
        self,
        policy: impl Fn(usize, u64, &mut Transaction<'_>) -> Charged,
        hold: impl FnOnce(&mut Transaction<'_>) -> Option<HoldReference>,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Taken {
        let mut notes = decision.notes();
        let note = |_, decided| notes.note(decided);
        let admission = Admission::of(row.into(), costs);
        let complete = |transaction: &mut Transaction<'_>, _: &Charges| Some(hold(transaction));
        let hold = match self.charge_by(policy, &admission, note, complete) {
            Err(_) => return Taken::Undecided,
            Ok(None) => return Taken::Refused,
            Ok(Some(hold)) => hold,
        };
        notes.note_key(row, row.reference());
        decision.set_hold(hold);
        Taken::Admitted
    }

    /// Refuses a request for a single backlog, unless it can wait; reclaiming from dead holders would not help. `None`
    /// if the limit never admits the cost.
    #[inline(never)]
    fn refuse_backlog(
        self,
        index: usize,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let cost = costs.amounts[index % MAX_LIMITS];
        let limit = self.shard.backlogs.get(index)?;
        let (assessment, mark) = limit.assess(row.states(Scope::Key), self.now, cost)?;
        if assessment == (Assessment::Refused { retry_after: None }) {
            return None;
        }
        decision.notes().note(Decided::assessed(mark, assessment));
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Some(Answer::MustWait);
        }
        decision.refuse(Cause::Limits);
        count(&self.shard.memory.control().refused_rate, 1);
        if let Some(counters) = self.shard.memory.find_counters(index) {
            count(&counters.refused, 1);
        }
        self.count_on_rows(row.into(), KeyCounts::REFUSED);
        Some(Answer::Refused)
    }
}
