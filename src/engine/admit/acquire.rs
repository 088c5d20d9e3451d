//! Taking several limits at once: all of them, or none.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::decided::Decided;
use super::decision::{Costs, Decision, Details, Impossible, RefusalReason, SHORTEST_WAIT, Stage};
use crate::engine::credit::batches::Batches;
use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::definition::own_capacities::LimitMask;
use crate::engine::definition::plan::Kind;
use crate::engine::definition::set_outline::SetOutline;
use crate::engine::recover::dead_holds::OfDead;
use crate::engine::recover::repairs::{Extent, POISONED_BY_COUNTS};
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::key_table::NoRow;
use crate::engine::shard::locked_shard::{LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
use crate::error::{Error, RequestError};
use crate::limit::Mark;
use crate::shm::layout::places::HoldReference;
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::layout::row::{Row, Rows};
use crate::shm::lock::journal::Transaction;

/// What one look at the set came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Answer {
    Admitted,
    Refused,
    /// What is held would have to be given back, and it is time to see whether all holders live. Not counted as a
    /// refusal yet.
    RetryAfterReclaim,
    /// A cost is above what a limit can ever admit.
    Impossible,
    /// It would be a refusal, but the request can wait. Not counted.
    MustWait,
}

/// What becomes of a request that the limits do not admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Attempt {
    /// It is refused, unless it is time to look for dead holders first.
    First,
    /// It is refused.
    Last,
    /// It is refused, and has waited in vain with that ticket, which is still in the queue.
    Late(u64),
    /// It waits, unless it is time to look for dead holders first.
    BeforeWaiting,
    /// It waits.
    Waiting,
}

/// Whose limits a request is put to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) set: &'a SetEngine,
    pub(crate) key: Option<&'a KeyIdentity>,
}

impl<'a> Target<'a> {
    #[inline]
    pub(crate) fn shard(self) -> Shard<'a> {
        self.set.shard_of(self.key)
    }

    /// The row that is looked at. What has no row is as if it had never been used.
    pub(in crate::engine) fn row_in(self, shard: RuledShard<'_>) -> Row<'_> {
        shard.find_row(self.key).unwrap_or(Row::ABSENT)
    }
}

impl SegmentEngine {
    /// Takes everything that `costs` names, or nothing; answers which.
    #[inline(always)]
    pub(crate) fn try_acquire(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<bool, Box<Error>> {
        if self.spend(target, costs, decision)? {
            return Ok(true);
        }
        self.decide_at_once(target.shard(), decision, |decision, attempt| {
            self.decide(target, costs, decision, attempt)
        })
    }

    /// Answers whether `decide` admits, which is asked again where it is worth a look first whether holders have died.
    #[inline(always)]
    pub(in crate::engine) fn decide_at_once(
        &self,
        shard: Shard<'_>,
        decision: &mut Decision,
        decide: impl Fn(&mut Decision, Attempt) -> Result<Answer, Box<Error>>,
    ) -> Result<bool, Box<Error>> {
        decision.owner = self.membership.owner()?;
        let mut answer = decide(decision, Attempt::First)?;
        if answer == Answer::RetryAfterReclaim {
            self.reclaim_if_due(shard, LockWait::Timeout)?;
            // A process that had lost its slot has another one now.
            decision.owner = self.membership.owner()?;
            answer = decide(decision, Attempt::Last)?;
        }
        match answer {
            Answer::Admitted => Ok(true),
            Answer::Impossible => Err(shard.never_admissible(decision.impossible())),
            Answer::Refused | Answer::RetryAfterReclaim | Answer::MustWait => Ok(false),
        }
    }

    /// What `costs` would be answered now, and how much dead processes hold, which is left out. Takes and counts nothing.
    pub(crate) fn peek(&self, target: Target<'_>, costs: &Costs) -> Result<(Decision, OfDead), Box<Error>> {
        let mut decision = Decision::pending(costs, target.set.notes_beside);
        let of_dead = self.look_at_row(target, costs.limits, |at, row| {
            at.assess_all(row.into(), costs, &mut decision);
            decision.wait_at_least(at.throttles(row, costs));
        })?;
        Ok((decision, of_dead))
    }

    pub(in crate::engine) fn decide(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let mut locked = self.lock(target.shard())?;
        let batches = target.set.batches.as_deref();
        self.decide_for_key(&mut locked, target.key, batches, costs, decision, attempt)
    }

    /// Decides for a key, or for all where the set has no keys. With `batches`, what is taken is drawn from one.
    #[inline(always)]
    pub(in crate::engine) fn decide_for_key(
        &self,
        locked: &mut LockedShard<'_>,
        key: Option<&KeyIdentity>,
        batches: Option<&Batches>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let row = match locked.row_for(key, costs)? {
            Ok(row) => row,
            Err(no_row) => return locked.without_a_row(no_row, costs, decision, attempt),
        };
        match batches {
            None if locked.shard.has_no_waiters(row) => {
                self.take_or_refuse(locked, row, costs, decision, attempt)
            }
            Some(batches) if locked.shard.has_no_waiters(row) => {
                self.draw_or_take(locked, batches, row, costs, decision, attempt)
            }
            _ => self.decide_behind(locked, row, costs, decision, attempt),
        }
    }

    /// Decides where others wait in the queue: no process overtakes them. If time has served them all by now, it is
    /// this request's turn.
    #[cold]
    fn decide_behind(
        &self,
        locked: &mut LockedShard<'_>,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        if attempt == Attempt::BeforeWaiting {
            // In the queue, what can never be met would keep every process behind it waiting for ever.
            let shard = locked.shard.of(row);
            let Some(impossible) = shard.impossible_cost(row, costs) else {
                return Ok(Answer::MustWait);
            };
            decision.note_impossible(impossible);
            return Ok(Answer::Impossible);
        }
        locked.serve_head(row.index)?;
        if locked.shard.has_no_waiters(row) {
            return self.take_or_refuse(locked, row, costs, decision, attempt);
        }
        decision.set_stage(Stage::Behind);
        locked.refuse(row.into(), costs, decision, attempt)
    }

    /// Decides where no request waits.
    #[inline(always)]
    pub(in crate::engine) fn take_or_refuse(
        &self,
        locked: &LockedShard<'_>,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let shard = locked.shard;
        decision.set_stage(Stage::Reserved);
        if locked.throttles(row, costs) > 0 {
            return locked.refuse(row.into(), costs, decision, attempt);
        }
        if u32::from(costs.limits.0) & shard.set.held_mask == 0 || !shard.takes_a_hold(costs) {
            return locked.take_all(row.into(), costs, LimitMask::default(), None, decision, attempt);
        }
        match self.find_free_hold(shard)? {
            FreeHold::None if shard.holds_in_shadow_only(costs) => {
                let waived = LimitMask(shard.set.held_mask as u16);
                locked.take_all(row.into(), costs, waived, None, decision, attempt)
            }
            FreeHold::None => {
                decision.set_stage(Stage::HoldsFull);
                locked.refuse(row.into(), costs, decision, attempt)
            }
            free => locked.take_all(
                row.into(),
                costs,
                LimitMask::default(),
                Some(free),
                decision,
                attempt,
            ),
        }
    }

    /// A free hold, counting the table again where its list of free holds is damaged.
    #[inline]
    pub(in crate::engine) fn find_free_hold(&self, shard: RuledShard<'_>) -> Result<FreeHold, Box<Error>> {
        match shard.memory.find_free_hold() {
            FreeHold::Damaged => self.find_free_hold_after_rebuild(shard),
            free => Ok(free),
        }
    }

    #[cold]
    fn find_free_hold_after_rebuild(&self, shard: RuledShard<'_>) -> Result<FreeHold, Box<Error>> {
        self.rebuild_or_poison(shard)?;
        Ok(shard.memory.find_free_hold())
    }

    /// Counts everything again because the counts or links were found damaged. The caller holds the lock.
    #[cold]
    pub(in crate::engine) fn rebuild_or_poison(&self, shard: RuledShard<'_>) -> Result<(), Box<Error>> {
        self.rebuild(shard);
        if shard.is_consistent(Extent::Whole) {
            return Ok(());
        }
        let poisoned = &shard.memory.control().poisoned;
        poisoned.store(POISONED_BY_COUNTS, Ordering::Relaxed);
        Err(shard.poisoned())
    }
}

impl RuledShard<'_> {
    /// Whether anything is taken that would have to be given back. Asking with a cost of zero takes nothing, and in a set
    /// with credit only batches are held.
    #[inline]
    pub(in crate::engine) fn takes_a_hold(&self, costs: &Costs) -> bool {
        self.held_indexes
            .iter()
            .any(|index| costs.limits.contains(*index) && costs.amounts[index % MAX_LIMITS] > 0)
            && self.set.batches.is_none()
    }

    /// Whether all that is asked for is asked of limits in shadow.
    pub(in crate::engine) fn is_in_shadow(&self, costs: &Costs) -> bool {
        u32::from(costs.limits.0) & !self.shadow_mask == 0
    }

    /// Whether all that would be held is of limits in shadow.
    fn holds_in_shadow_only(&self, costs: &Costs) -> bool {
        u32::from(costs.limits.0) & self.set.held_mask & !self.shadow_mask == 0
    }

    /// The first cost that is above what its limit admits the key of a row at once, and that most: an error and not a
    /// refusal. No limit takes such a cost, so it is enough to look when something was refused.
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

    /// Whether the death of a holder would help: a hold, concurrency, or a reservation that is refunded then.
    fn is_refused_by_holders(&self, decision: &Decision) -> bool {
        let by_what_is_held = |index: usize| self.set.held_mask & (1 << index) != 0;
        matches!(
            decision.stage(),
            Stage::HoldsFull | Stage::NoRow | Stage::Behind | Stage::QueueFull
        ) || decision
            .iter()
            .any(|(index, decided)| decided.wait() > 0 && by_what_is_held(index))
    }
}

impl Shard<'_> {
    /// Says what can never be met. Not under the lock, because that allocates.
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

impl SetOutline {
    /// Why a decision was a refusal.
    pub(crate) fn refusal_reason(&self, decision: &Details) -> RefusalReason {
        if decision.stage() == Stage::QueueFull {
            return RefusalReason::QueueFull;
        }
        let binding = decision.binding().and_then(|(index, _)| self.limits.get(index));
        match binding.map(|limit| limit.kind) {
            None if decision.stage() == Stage::HoldsFull => RefusalReason::HoldsFull,
            None if decision.stage() == Stage::Throttled => RefusalReason::Throttled,
            None => RefusalReason::TableFull,
            Some(Kind::Concurrency) => RefusalReason::Concurrency,
            Some(Kind::Budget) => RefusalReason::Budget,
            Some(Kind::Rate | Kind::Calls) => RefusalReason::Rate,
        }
    }
}

impl ShardAt<'_> {
    /// What each limit that is asked for says. There is room for it.
    pub(in crate::engine) fn assess_all(&self, rows: Rows<'_>, costs: &Costs, decision: &mut Decision) {
        let shard = self.shard.of_request(rows.first(), costs);
        decision.definition = shard.definition();
        decision.decided.clear();
        for (index, cost) in costs.iter() {
            let Some(limit) = shard.limits.get(index) else {
                continue;
            };
            let row = rows.of(limit.level);
            let limit = limit.of_request(row, costs);
            let assessment = limit.verdict(row, self.now, cost);
            decision.note(Decided::assessed(limit.mark(row, self.now), assessment));
        }
        shard.note_own_capacities(rows.first(), costs, decision);
    }
}

impl LockedShard<'_> {
    /// Takes one limit after the other. Where one refuses, what was taken before it is undone, in the way in which
    /// it would be after a death.
    #[inline(always)]
    pub(in crate::engine) fn take_all(
        &self,
        rows: Rows<'_>,
        costs: &Costs,
        waived: LimitMask,
        free: Option<FreeHold>,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        if self.shard.differs_by_key {
            return self.take_all_of_key(rows, costs, waived, free, decision, attempt);
        }
        let mut transaction = self.shard.memory.journal().begin();
        decision.begin(self.shard.index(), self.shard.definition(), self.now.monotonic);
        let note = |_, decided| decision.note(decided);
        let Some(waived) = self.take_each(rows, &mut transaction, costs, waived, note) else {
            drop(transaction);
            return self.refuse(rows, costs, decision, attempt);
        };
        self.commit_taken(transaction, rows, costs, waived, free, decision)?;
        Ok(Answer::Admitted)
    }

    /// As [`take_all`](Self::take_all), where the limits may be others for each key.
    #[inline(never)]
    fn take_all_of_key(
        &self,
        rows: Rows<'_>,
        costs: &Costs,
        waived: LimitMask,
        free: Option<FreeHold>,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let shard = self.shard.of_request(rows.first(), costs);
        let mut transaction = self.shard.memory.journal().begin();
        decision.begin(shard.index(), shard.definition(), self.now.monotonic);
        let note = |_, decided| decision.note(decided);
        let Some(waived) = self.take_each(rows, &mut transaction, costs, waived, note) else {
            drop(transaction);
            return self.refuse(rows, costs, decision, attempt);
        };
        self.commit_taken(transaction, rows, costs, waived, free, decision)?;
        shard.note_own_capacities(rows.first(), costs, decision);
        Ok(Answer::Admitted)
    }

    /// Makes what was taken final, with the hold and the counts of it.
    #[inline(always)]
    pub(in crate::engine) fn commit_taken(
        &self,
        mut transaction: Transaction<'_>,
        rows: Rows<'_>,
        costs: &Costs,
        waived: LimitMask,
        free: Option<FreeHold>,
        decision: &mut Decision,
    ) -> Result<(), Box<Error>> {
        if let Some(free) = free {
            let hold = self.take_hold(
                &mut transaction,
                rows.first(),
                free,
                decision.owner,
                costs,
                waived,
            );
            decision.set_hold(hold);
        }
        decision.note_key(rows.first());
        transaction.add(&self.shard.memory.control().admitted, 1);
        self.count_on_rows(&mut transaction, rows, true);
        self.shard.commit(transaction)?;
        self.keep_label(decision, costs);
        Ok(())
    }

    /// Takes and counts one limit after the other, telling `note` how each stood then; none where one refused, and the
    /// transaction is to be undone. Answers which were waived: those in shadow that would have refused, and `waived`
    /// itself.
    #[inline(always)]
    pub(in crate::engine) fn take_each(
        &self,
        rows: Rows<'_>,
        transaction: &mut Transaction<'_>,
        costs: &Costs,
        waived: LimitMask,
        note: impl FnMut(usize, Decided),
    ) -> Option<LimitMask> {
        let take = |limit: &LimitRules, row: Row<'_>, transaction: &mut Transaction<'_>, cost| {
            limit.take(row, transaction, self.now, cost).ok()
        };
        self.charge_each(take, rows, transaction, costs, waived, note)
    }

    /// As [`take_each`](Self::take_each), where `charge` charges one limit and says how it stands then, or does not.
    #[inline(always)]
    pub(in crate::engine) fn charge_each(
        &self,
        charge: impl Fn(&LimitRules, Row<'_>, &mut Transaction<'_>, u64) -> Option<Mark>,
        rows: Rows<'_>,
        transaction: &mut Transaction<'_>,
        costs: &Costs,
        waived: LimitMask,
        note: impl FnMut(usize, Decided),
    ) -> Option<LimitMask> {
        if !self.shard.differs_by_key {
            let limits = &self.shard.limits;
            let limit = |index, _| limits.get(index);
            return self.charge_each_by(limit, charge, rows, transaction, costs, waived, note);
        }
        let limits = &self.shard.of_request(rows.first(), costs).rules.limits;
        let limit = |index, row| {
            limits
                .get(index)
                .map(|limit: &LimitRules| limit.of_request(row, costs))
        };
        self.charge_each_by(limit, charge, rows, transaction, costs, waived, note)
    }

    /// As [`charge_each`](Self::charge_each), by the limits that are `limit` of a row.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what a decision is made of")]
    fn charge_each_by<'a, L: Deref<Target = LimitRules>>(
        &self,
        limit_of: impl Fn(usize, Row<'a>) -> Option<L>,
        charge: impl Fn(&LimitRules, Row<'_>, &mut Transaction<'_>, u64) -> Option<Mark>,
        rows: Rows<'a>,
        transaction: &mut Transaction<'_>,
        costs: &Costs,
        mut waived: LimitMask,
        mut note: impl FnMut(usize, Decided),
    ) -> Option<LimitMask> {
        for (index, cost) in costs.iter() {
            // Limits of several networks are the same for all rows.
            let limit = limit_of(index, rows.first())?;
            let row = rows.of(limit.level);
            let counters = self.shard.counters(index);
            let taken = if waived.contains(index) {
                None
            } else {
                charge(&limit, row, transaction, cost)
            };
            match taken {
                Some(mark) => {
                    transaction.add(&counters.admitted, 1);
                    transaction.add(&counters.taken, cost);
                    if limit.is_near(mark) {
                        transaction.add(&counters.near, 1);
                    }
                    note(index, Decided::charged(mark, cost));
                }
                None if limit.shadow => {
                    waived.insert(index);
                    transaction.add(&counters.would_refuse, 1);
                    note(index, Decided::charged(limit.mark(row, self.now), 0));
                }
                None => return None,
            }
        }
        Some(waived)
    }

    /// Counts a refusal, unless it is none yet.
    #[inline(never)]
    pub(in crate::engine) fn refuse(
        &self,
        rows: Rows<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        // The caller is answered after the lock is released: the answer allocates.
        let shard = self.shard.of_request(rows.first(), costs);
        if let Some(impossible) = shard.impossible_cost(rows.first(), costs) {
            decision.note_impossible(impossible);
            return Ok(Answer::Impossible);
        }
        self.at_its_instant().assess_all(rows, costs, decision);
        let may_look = matches!(attempt, Attempt::First | Attempt::BeforeWaiting);
        if may_look && self.shard.is_refused_by_holders(decision) && self.shard.reclaim_is_due() {
            return Ok(Answer::RetryAfterReclaim);
        }
        if matches!(attempt, Attempt::BeforeWaiting | Attempt::Waiting) {
            return Ok(Answer::MustWait);
        }
        let late = match attempt {
            Attempt::Late(ticket) => Some(ticket),
            _ => None,
        };
        self.note_wait(rows.first(), costs, decision, late)?;
        self.count_refusal(rows, decision)?;
        Ok(Answer::Refused)
    }

    /// Counts a refusal that is decided.
    #[inline(always)]
    pub(in crate::engine) fn count_refusal(
        &self,
        rows: Rows<'_>,
        decision: &Decision,
    ) -> Result<(), Box<Error>> {
        let reason = self.shard.set.refusal_reason(decision);
        let mut transaction = self.shard.memory.journal().begin();
        transaction.add(self.refusal_counter(reason), 1);
        for (index, decided) in decision.iter() {
            if decided.wait() > 0 {
                transaction.add(&self.shard.counters(index).refused, 1);
            }
        }
        self.count_on_rows(&mut transaction, rows, false);
        self.shard.commit(transaction)
    }

    /// Notes what a refused request waits for besides its own limits: that nothing is admitted for a while, or that those
    /// before it in the queue are served, whichever takes longer.
    #[inline(always)]
    fn note_wait(
        &self,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        late: Option<u64>,
    ) -> Result<(), Box<Error>> {
        let throttled_for = self.throttles(row, costs);
        let is_behind = match decision.stage() {
            Stage::Behind | Stage::QueueFull => true,
            // It was not looked yet who waits.
            Stage::Reserved => throttled_for > 0 && !self.shard.has_no_waiters(row),
            _ => false,
        };
        let ahead = if is_behind {
            self.binding_behind(row, costs, late)?
        } else {
            None
        };
        let waits_longer = ahead.is_some_and(|(_, wait)| wait > throttled_for);
        if throttled_for > 0 && !waits_longer && matches!(decision.stage(), Stage::Reserved | Stage::Behind) {
            decision.set_throttled(throttled_for);
        } else if is_behind {
            if decision.stage() == Stage::Reserved {
                decision.set_stage(Stage::Behind);
            }
            // Where the first of them could go by now, it is about to; any of the limits asked for says what for.
            let about_to_be_served = || costs.limits.iter().next().map(|any| (any, SHORTEST_WAIT));
            let ahead = ahead.or_else(about_to_be_served);
            decision.set_ahead(ahead.map(|(index, wait)| (index, wait.max(throttled_for))));
        }
        Ok(())
    }

    /// Refuses a key for which there is no row: waiting does not help, because there is no queue to wait in. Where
    /// every limit is in shadow, it is admitted.
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
            decision.set_stage(Stage::Reserved);
            return self.take_all(Row::ABSENT.into(), costs, costs.limits, None, decision, attempt);
        }
        decision.set_no_row(room_in);
        let attempt = match attempt {
            Attempt::First | Attempt::BeforeWaiting => Attempt::First,
            Attempt::Last | Attempt::Late(_) | Attempt::Waiting => Attempt::Last,
        };
        self.refuse(Row::ABSENT.into(), costs, decision, attempt)
    }

    fn refusal_counter(&self, reason: RefusalReason) -> &AtomicU64 {
        let control = self.shard.memory.control();
        match reason {
            RefusalReason::Rate => &control.refused_rate,
            RefusalReason::Concurrency => &control.refused_concurrency,
            RefusalReason::Budget => &control.refused_budget,
            RefusalReason::TableFull => &control.refused_table_full,
            RefusalReason::HoldsFull => &control.refused_holds_full,
            RefusalReason::QueueFull => &control.refused_queue_full,
            RefusalReason::Throttled => &control.refused_throttled,
        }
    }

    /// Takes the free hold that was found, with an amount for each held limit, and notes the most held at once.
    pub(in crate::engine) fn take_hold(
        &self,
        transaction: &mut Transaction<'_>,
        row: Row<'_>,
        free: FreeHold,
        owner: u64,
        costs: &Costs,
        waived: LimitMask,
    ) -> Option<HoldReference> {
        let hold = self.fill_hold(transaction, row, free, owner, |limit| {
            if costs.limits.contains(limit) && !waived.contains(limit) {
                costs.amounts[limit % MAX_LIMITS]
            } else {
                0
            }
        })?;
        for limit in self.shard.held_limits() {
            if let Some(in_use) = limit.in_use(row) {
                let high_water = &self.shard.counters(limit.index).high_water;
                transaction.raise(high_water, in_use.load(Ordering::Relaxed));
            }
        }
        Some(hold)
    }
}
