//! Charging: takes everything a request asks for, limit by limit, or nothing.
//!
//! Requests, reservations, grants from the queue and batches of credit all go through one [loop](charge_each) and one
//! [commit](ShardAt::charge_by). They differ in the policy that charges a limit, in where the resulting mark is noted,
//! and in what else belongs to the transaction. The one exception is a request for a single backlog: the
//! [fast path](crate::engine::admit::plain) charges it without the loop.

use std::ops::Deref;

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::key_table::KeyCounts;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::shard::set_engine::ShardAt;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::resolution::Cause;
use crate::error::Error;
use crate::limit::Mark;
use crate::shm::layout::row::Rows;
use crate::shm::lock::journal::{JournalOverflow, Transaction, count};

/// What is to be charged, and what is recorded with it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Admission<'r> {
    pub(in crate::engine) rows: Rows<'r>,
    pub(in crate::engine) costs: &'r Costs,
    /// Limits in shadow that are not charged, because no hold is free or the key has no row.
    pub(in crate::engine) waived: LimitMask,
    /// The free hold to take, if anything has to be given back.
    pub(in crate::engine) hold: Option<FreeHold>,
    /// For a reservation: how many nanoseconds from now it will be used. By then every limit must admit it.
    pub(in crate::engine) ahead: Option<u64>,
    /// How many requests to count.
    pub(in crate::engine) requests: u64,
}

impl<'r> Admission<'r> {
    /// One request that takes its costs now.
    #[inline(always)]
    pub(in crate::engine) fn of(rows: Rows<'r>, costs: &'r Costs) -> Self {
        Self {
            rows,
            costs,
            waived: LimitMask::default(),
            hold: None,
            ahead: None,
            requests: 1,
        }
    }
}

/// The result of charging one limit.
pub(super) enum Charged {
    Taken {
        mark: Mark,
        is_near: bool,
    },
    /// A limit in shadow took nothing.
    Waived(Mark),
    Refused,
}

impl Charged {
    #[inline(always)]
    pub(super) fn by(mark: Option<Mark>, is_near: impl FnOnce(Mark) -> bool) -> Self {
        match mark {
            None => Self::Refused,
            Some(mark) => Self::Taken {
                mark,
                is_near: is_near(mark),
            },
        }
    }
}

/// Which of the charged limits are near their capacity, and which limits were waived.
#[derive(Default)]
pub(super) struct Charges {
    near: LimitMask,
    waived: LimitMask,
}

/// Charges one limit after another by `policy`, and passes each result to `note`. Returns `None` as soon as one
/// refuses.
#[inline(always)]
fn charge_each(
    costs: &Costs,
    transaction: &mut Transaction<'_>,
    policy: impl Fn(usize, u64, &mut Transaction<'_>) -> Charged,
    mut note: impl FnMut(usize, Decided),
) -> Option<Charges> {
    let mut charges = Charges::default();
    for (index, cost) in costs.iter() {
        let decided = match policy(index, cost, transaction) {
            Charged::Taken { mark, is_near } => {
                if is_near {
                    charges.near.insert(index);
                }
                Decided::charged(mark, cost)
            }
            Charged::Waived(mark) => {
                charges.waived.insert(index);
                Decided::charged(mark, 0)
            }
            Charged::Refused => return None,
        };
        note(index, decided);
    }
    Some(charges)
}

impl ShardAt<'_> {
    /// Charges all limits by `policy`, lets `complete` do whatever else belongs to the transaction, counts, and
    /// commits. `complete` gets the limits that were waived and those that are near their capacity. If a limit refuses,
    /// or `complete` returns `None`, everything is rolled back, just as if this process had died.
    #[inline(always)]
    pub(super) fn charge_by<T>(
        &self,
        policy: impl Fn(usize, u64, &mut Transaction<'_>) -> Charged,
        admission: &Admission<'_>,
        note: impl FnMut(usize, Decided),
        complete: impl FnOnce(&mut Transaction<'_>, &Charges) -> Option<T>,
    ) -> Result<Option<T>, JournalOverflow> {
        let costs = admission.costs;
        let mut transaction = self.shard.memory.journal().begin();
        let Some(charges) = charge_each(costs, &mut transaction, policy, note) else {
            return Ok(None);
        };
        let Some(completed) = complete(&mut transaction, &charges) else {
            return Ok(None);
        };
        // Last, because counters are not rolled back.
        for (index, cost) in costs.iter() {
            if charges.waived.contains(index) {
                count(&self.shard.counters(index).would_refuse, 1);
            } else {
                self.count_charge(index, cost, charges.near.contains(index), admission.requests);
            }
        }
        self.count_admitted(admission.rows, admission.requests);
        transaction.commit()?;
        Ok(Some(completed))
    }
}

impl LockedShard<'_> {
    /// [Charges](ShardAt::charge_by) all limits by their rules, together with whatever `complete` adds, and notes which
    /// leases are running low.
    #[inline(always)]
    pub(in crate::engine) fn charge<T>(
        &self,
        admission: &Admission<'_>,
        note: impl FnMut(usize, Decided),
        complete: impl FnOnce(&mut Transaction<'_>, LimitMask) -> Option<T>,
    ) -> Result<Option<T>, Box<Error>> {
        let (costs, row, rules) = (admission.costs, admission.rows.first(), self.shard.rules);
        let mut near = LimitMask::default();
        let complete = |transaction: &mut Transaction<'_>, charges: &Charges| {
            near = charges.near;
            complete(transaction, charges.waived)
        };
        let charged = if rules.differs_by_key {
            let rules = self.shard.of_request(row, costs).rules;
            let limit_of = |index: usize| Some(rules.limits.get(index)?.of_request(row, costs));
            self.charge_by(self.by_rules(limit_of, admission), admission, note, complete)
        } else {
            let limit_of = |index: usize| rules.limits.get(index);
            self.charge_by(self.by_rules(limit_of, admission), admission, note, complete)
        };
        let charged = charged.map_err(|overflow| self.shard.internal_error(overflow))?;
        if charged.is_some() {
            self.note_low_leases(near, row);
        }
        Ok(charged)
    }

    /// Takes everything, or refuses.
    #[inline(never)]
    pub(in crate::engine) fn take_all(
        &self,
        admission: &Admission<'_>,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let Admission { rows, costs, .. } = *admission;
        let shard = self.shard.of_request(rows.first(), costs);
        // Not as a pending one: the fast path may have left notes before it gave up.
        decision.begin(
            shard.index(),
            shard.definition(),
            self.now.monotonic,
            self.owner,
            false,
        );
        let mut notes = decision.notes();
        let taken = self.charge(
            admission,
            |_, decided| notes.note(decided),
            |transaction, waived| {
                let take_hold =
                    |free| self.take_hold(transaction, rows.first(), free, self.owner, costs, waived);
                Some(admission.hold.and_then(take_hold))
            },
        )?;
        let Some(hold) = taken else {
            return self.refuse(rows, costs, Cause::Limits, decision, attempt);
        };
        notes.note_key(rows.first(), rows.first().reference());
        decision.set_hold(hold);
        if shard.differs_by_key {
            shard.note_own_capacities(rows.first(), costs, decision);
        }
        self.keep_label(decision, costs);
        Ok(Answer::Admitted)
    }

    /// The policy for any limit. `limit_of` finds its rules, which are the same for all networks of an address. A limit
    /// in shadow never refuses: it is waived instead.
    #[inline(always)]
    fn by_rules<L: Deref<Target = LimitRules>>(
        &self,
        limit_of: impl Fn(usize) -> Option<L>,
        admission: &Admission<'_>,
    ) -> impl Fn(usize, u64, &mut Transaction<'_>) -> Charged {
        move |index, cost, transaction| {
            let Some(limit) = limit_of(index) else {
                return Charged::Refused;
            };
            let row = admission.rows.of(limit.level);
            let mark = match admission.ahead {
                _ if admission.waived.contains(index) => None,
                None => limit.take(row, transaction, self.now, cost).ok(),
                Some(delay) => limit.take_ahead(row, transaction, self.now, delay, cost),
            };
            if mark.is_none() && limit.shadow {
                return Charged::Waived(limit.mark(row, self.now));
            }
            Charged::by(mark, |mark| limit.is_near(mark))
        }
    }
}

impl ShardAt<'_> {
    /// Counts what a limit admitted.
    #[inline(always)]
    pub(super) fn count_charge(&self, index: usize, cost: u64, is_near: bool, requests: u64) {
        // Every limit has counters, but indexing could panic, and a panic must not end this half done.
        if let Some(counters) = self.shard.memory.find_counters(index) {
            count(&counters.admitted, requests);
            count(&counters.taken, cost);
            if is_near {
                count(&counters.near, 1);
            }
        }
    }

    /// Counts admitted requests.
    #[inline(always)]
    pub(in crate::engine) fn count_admitted(&self, rows: Rows<'_>, requests: u64) {
        count(&self.shard.memory.control().admitted, requests);
        self.count_on_rows(rows, KeyCounts::admitted(requests));
    }
}
