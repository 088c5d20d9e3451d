//! The short way of most requests: what they take of is no more than a rule, its state, and where it is held a hold. Whatever
//! else there is to be looked at, such as a lease of the host that runs low, is left to the way that all requests can go, under the
//! same lock.

use std::sync::atomic::Ordering;

use super::acquire::{Answer, Attempt};
use super::decided::Decided;
use super::decision::{Costs, Decision, RefusalReason};
use super::resolution::Cause;
use crate::engine::definition::own_capacities::LimitMask;
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::set_engine::ShardAt;
use crate::limit::{Assessment, Mark};
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::{LoneChange, Transaction, count};

/// What the limits came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Admitted,
    Refused,
    /// It is to be decided in the other way.
    Undecided,
}

impl ShardAt<'_> {
    /// Decides what is asked for by the process that is `owner`, unless it is to be decided in the other way. If so, no limit was
    /// changed. The caller holds the lock, and has seen to what there was to be seen to. At the [first](Attempt::First) attempt
    /// the decision must be a pending one.
    #[inline(always)]
    pub(in crate::engine) fn decide_plain(
        self,
        owner: u64,
        key: Option<&KeyIdentity>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let Self { shard, now } = self;
        let is_by_backlogs = shard.backlogs.have_all(costs.limits);
        if !is_by_backlogs && costs.limits.0 & !shard.plain.0 != 0 {
            return None;
        }
        let row = match key {
            None => shard.only_row(),
            Some(key) => shard.find_row_of(key.fingerprint)?,
        };
        if !shard.has_no_waiters(row) || shard.throttled_for(row, now) != 0 {
            return None;
        }
        // What is decided in functions of their own gets copies that are made there, so that these stay in registers.
        let is_pending = attempt == Attempt::First;
        decision.begin_in_place(
            shard.index(),
            shard.definition(),
            now.monotonic,
            owner,
            is_pending,
        );
        let taken = if is_by_backlogs {
            match costs.limits.only() {
                Some(index) => shard.at(now).take_backlog(index, row, costs, decision),
                None => shard.at(now).take_backlogs(row, costs, decision),
            }
        } else if u32::from(costs.limits.0) & shard.set.held_mask != 0 {
            shard.at(now).take_and_hold(row, costs, decision)
        } else {
            shard.at(now).take_by_rules(row, costs, decision)
        };
        match taken {
            Taken::Admitted => Some(Answer::Admitted),
            Taken::Refused if is_by_backlogs => {
                let refused = match costs.limits.only() {
                    Some(index) => shard.at(now).refuse_backlog(index, row, costs, decision, attempt),
                    None => shard.at(now).refuse_backlogs(row, costs, decision, attempt),
                };
                match refused {
                    None => Some(shard.at(now).refuse_plain(row, costs, decision, attempt)),
                    answer => answer,
                }
            }
            // It is to be noted how much was asked for.
            Taken::Refused if costs.limits.0 & shard.leased.0 != 0 => None,
            Taken::Refused => Some(shard.at(now).refuse_plain(row, costs, decision, attempt)),
            Taken::Undecided => None,
        }
    }

    /// Takes of the only limit that is asked for, as most requests do. Nearly all of what that changes is one word.
    #[inline(always)]
    fn take_backlog(self, index: usize, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let cost = costs.amounts[index % MAX_LIMITS];
        let Some(limit) = self.shard.backlogs.get(index) else {
            return Taken::Refused;
        };
        let Some(words) = limit.words(row.states()) else {
            return Taken::Refused;
        };
        let Some(mark) = limit.mark_if_admitted(words, self.now, cost) else {
            return Taken::Refused;
        };
        let memory = self.shard.memory;
        let change = (cost > 0).then(|| LoneChange::begin(&memory.control().journal));
        // Counted before it is done, so that a death in between counts one too many and none too few.
        self.count_taken(index, cost, limit.is_near(mark));
        count(&memory.control().admitted, 1);
        self.count_on_rows(row.into(), true);
        if let Some(change) = change {
            let [first, second] = limit.state_at(self.now, mark);
            if words[1].load(Ordering::Relaxed) == second {
                change.change(&words[0], first);
            } else if memory.change_both(words, first, second).is_err() {
                return Taken::Undecided;
            }
        }
        let mut notes = decision.notes().iter_mut();
        note(&mut notes, Some(Decided::charged(mark, cost)));
        note(&mut notes, Decided::of_key(row, row.reference()));
        Taken::Admitted
    }

    /// Takes of several limits.
    #[inline(never)]
    fn take_backlogs(self, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let states = row.states();
        let take = |index: usize, cost, transaction: &mut Transaction<'_>| {
            let limit = self.shard.backlogs.get(index)?;
            let mark = limit.take(states, transaction, self.now, cost)?;
            Some((mark, limit.is_near(mark)))
        };
        self.take_each_by(take, |_, _| (), (row, LimitMask::default()), costs, decision)
    }

    /// Counts what was taken of a limit, which may be near its end.
    #[inline(always)]
    fn count_taken(&self, index: usize, cost: u64, is_near: bool) {
        // There are counters for each limit; said so, because nothing may end this half done.
        if let Some(counters) = self.shard.memory.find_counters(index) {
            count(&counters.admitted, 1);
            count(&counters.taken, cost);
            if is_near {
                count(&counters.near, 1);
            }
        }
    }

    #[inline(never)]
    fn take_by_rules(self, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        let take =
            |index, cost, transaction: &mut Transaction<'_>| self.take_by_rule(row, index, cost, transaction);
        self.take_each_by(take, |_, _| (), (row, self.shard.leased), costs, decision)
    }

    #[inline(never)]
    fn take_and_hold(self, row: Row<'_>, costs: &Costs, decision: &mut Decision) -> Taken {
        if !self.shard.set.takes_a_hold(costs) {
            return self.take_by_rules(row, costs, decision);
        }
        let free = self.shard.memory.find_free_hold();
        // A label is written once the hold is committed; whether others died is to be seen where no hold is free.
        if matches!(free, FreeHold::None | FreeHold::Damaged) || costs.label.is_some() {
            return Taken::Undecided;
        }
        let hold = |transaction: &mut Transaction<'_>, decision: &mut Decision| {
            let none_waived = LimitMask::default();
            let hold = self.take_hold(transaction, row, free, decision.owner, costs, none_waived);
            decision.set_hold(hold);
        };
        let take =
            |index, cost, transaction: &mut Transaction<'_>| self.take_by_rule(row, index, cost, transaction);
        self.take_each_by(take, hold, (row, self.shard.leased), costs, decision)
    }

    #[inline(always)]
    fn take_by_rule(
        &self,
        row: Row<'_>,
        index: usize,
        cost: u64,
        transaction: &mut Transaction<'_>,
    ) -> Option<(Mark, bool)> {
        let limit = self.shard.limits.get(index)?;
        let mark = limit.take(row, transaction, self.now, cost).ok()?;
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
        (row, leased): (Row<'_>, LimitMask),
        costs: &Costs,
        decision: &mut Decision,
    ) -> Taken {
        let mut near = LimitMask::default();
        let mut transaction = self.shard.memory.journal().begin();
        let mut notes = decision.notes().iter_mut();
        for (index, cost) in costs.iter() {
            let Some((mark, is_near)) = take(index, cost, &mut transaction) else {
                return Taken::Refused;
            };
            if is_near {
                near.insert(index);
            }
            note(&mut notes, Some(Decided::charged(mark, cost)));
        }
        note(&mut notes, Decided::of_key(row, row.reference()));
        if near.0 & leased.0 != 0 {
            // More is to be asked for: the other way has that done.
            return Taken::Undecided;
        }
        hold(&mut transaction, decision);
        // Only now, because what is counted is not undone.
        for (index, cost) in costs.iter() {
            self.count_taken(index, cost, near.contains(index));
        }
        count(&self.shard.memory.control().admitted, 1);
        self.count_on_rows(row.into(), true);
        match transaction.commit() {
            Ok(()) => Taken::Admitted,
            Err(_) => Taken::Undecided,
        }
    }

    #[inline(never)]
    fn refuse_plain(self, row: Row<'_>, costs: &Costs, decision: &mut Decision, attempt: Attempt) -> Answer {
        // The caller is answered after the lock is released: the answer allocates.
        if let Some(impossible) = self.assess_all(row.into(), costs, decision) {
            decision.note_impossible(impossible);
            return Answer::Impossible;
        }
        if let Some(answer) = self.not_yet_refused(costs, Cause::Limits, decision, attempt) {
            return answer;
        }
        decision.refuse(Cause::Limits);
        self.count_refusal(row.into(), decision);
        Answer::Refused
    }

    /// As [`refuse_plain`](Self::refuse_plain), where no death of a holder would help and a rate is what binds. None where a cost
    /// never fits, which that says.
    #[inline(never)]
    fn refuse_backlogs(
        self,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let mut notes = decision.notes().iter_mut();
        for (index, cost) in costs.iter() {
            note(&mut notes, Some(self.assess_backlog(index, row, cost)?));
        }
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Some(Answer::MustWait);
        }
        decision.refuse(Cause::Limits);
        self.count_refusal_for(RefusalReason::Rate, row.into(), decision);
        Some(Answer::Refused)
    }

    /// As [`refuse_backlogs`](Self::refuse_backlogs), of the only limit that is asked for.
    #[inline(never)]
    fn refuse_backlog(
        self,
        index: usize,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Option<Answer> {
        let decided = self.assess_backlog(index, row, costs.amounts[index % MAX_LIMITS])?;
        note(&mut decision.notes().iter_mut(), Some(decided));
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Some(Answer::MustWait);
        }
        decision.refuse(Cause::Limits);
        count(&self.shard.memory.control().refused_rate, 1);
        if let Some(counters) = self.shard.memory.find_counters(index) {
            count(&counters.refused, 1);
        }
        self.count_on_rows(row.into(), false);
        Some(Answer::Refused)
    }

    /// What a limit says to a cost; none where it never fits.
    #[inline(always)]
    fn assess_backlog(&self, index: usize, row: Row<'_>, cost: u64) -> Option<Decided> {
        let limit = self.shard.backlogs.get(index)?;
        let (assessment, mark) = limit.assess(row.states(), self.now, cost)?;
        let never_fits = assessment == Assessment::Refused { retry_after: None };
        (!never_fits).then(|| Decided::assessed(mark, assessment))
    }
}

/// Notes something in the next place, if there is anything to be noted.
#[inline(always)]
fn note(notes: &mut std::slice::IterMut<'_, Decided>, decided: Option<Decided>) {
    if let Some(decided) = decided {
        let place = notes.next();
        debug_assert!(place.is_some(), "a decision has room for all that is noted");
        if let Some(place) = place {
            *place = decided;
        }
    }
}
