//! Deciding a request without waiting: finds its row and a hold, and overtakes nobody in the queue.

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::admit::plain::Plain;
use crate::engine::recover::dead_holds::OfDead;
use crate::engine::shard::batches::Batches;
use crate::engine::shard::hold::FreeHold;
use crate::engine::shard::locked_shard::{BareLock, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard};
use crate::engine::shard::target::Target;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::resolution::Cause;
use crate::error::Error;
use crate::shm::layout::row::Row;

impl SegmentEngine {
    /// Takes everything that `costs` names, or nothing. Returns whether it did.
    #[inline(always)]
    pub(crate) fn try_acquire(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<bool, Box<Error>> {
        let answer = match target.key {
            None => self.admit::<false>(target, costs, decision)?,
            Some(_) => self.admit::<true>(target, costs, decision)?,
        };
        Ok(answer == Answer::Admitted)
    }

    /// Does the work of [`try_acquire`](Self::try_acquire), and returns its answer in registers. Everything that most
    /// requests need is inlined here. It is compiled once for keyed sets and once for the others, so that a set without
    /// keys does not pay for what only keys need.
    #[inline(never)]
    fn admit<const IS_KEYED: bool>(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<Answer, Box<Error>> {
        let key = target.key.filter(|_| IS_KEYED);
        let target = Target { key, ..target };
        if self.spend(target, costs, decision)? {
            return Ok(Answer::Admitted);
        }
        let mut answer = self.decide_inline(target, costs, decision, Attempt::First)?;
        if matches!(answer, Answer::Admitted | Answer::Refused) {
            return Ok(answer);
        }
        if answer == Answer::AwaitsLease {
            answer = self.await_lease(target, costs, decision)?;
        }
        let shard = target.shard();
        let admitted = self.conclude(shard, answer, decision, |decision| {
            self.decide(target, costs, decision, Attempt::Last)
        })?;
        Ok(if admitted {
            Answer::Admitted
        } else {
            Answer::Refused
        })
    }

    /// Returns whether `decide` admits the request. If dead holders may be in the way, reclaims what they held and
    /// calls `decide` again.
    #[inline(always)]
    pub(in crate::engine) fn decide_at_once(
        &self,
        shard: Shard<'_>,
        decision: &mut Decision,
        decide: impl Fn(&mut Decision, Attempt) -> Result<Answer, Box<Error>>,
    ) -> Result<bool, Box<Error>> {
        let answer = decide(decision, Attempt::First)?;
        self.conclude(shard, answer, decision, |decision| {
            decide(decision, Attempt::Last)
        })
    }

    /// Whether the request is admitted, given the first answer. If dead holders may be in the way, reclaims what they
    /// held and lets `decide` answer again.
    #[inline(always)]
    fn conclude(
        &self,
        shard: Shard<'_>,
        mut answer: Answer,
        decision: &mut Decision,
        decide: impl FnOnce(&mut Decision) -> Result<Answer, Box<Error>>,
    ) -> Result<bool, Box<Error>> {
        if answer == Answer::RetryAfterReclaim {
            self.reclaim_if_due(shard, LockWait::Timeout)?;
        }
        if matches!(answer, Answer::RetryAfterReclaim | Answer::AwaitsLease) {
            answer = decide(decision)?;
        }
        match answer {
            Answer::Admitted => Ok(true),
            Answer::Impossible => Err(shard.never_admissible(decision.impossible())),
            Answer::Refused | Answer::RetryAfterReclaim | Answer::MustWait | Answer::AwaitsLease => Ok(false),
        }
    }

    /// How `costs` would be decided now if dead processes held nothing, and how much they do hold. Takes and counts
    /// nothing.
    pub(crate) fn peek(&self, target: Target<'_>, costs: &Costs) -> Result<(Decision, OfDead), Box<Error>> {
        let mut decision = Decision::pending(costs, target.set.notes_beside);
        let of_dead = self.look_at_row(target, costs.limits, |at, row| {
            at.assess_all(row.into(), costs, &mut decision);
            decision.wait_at_least(at.throttles(row, costs));
        })?;
        Ok((decision, of_dead))
    }

    #[inline(never)]
    pub(in crate::engine) fn decide(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        self.decide_inline(target, costs, decision, attempt)
    }

    #[inline(always)]
    fn decide_inline(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let shard = target.shard();
        let bare = self.take_bare_lock(shard)?;
        let ruled = shard.by(shard.set.shown());
        if bare.needs_attention(self, ruled) {
            return self.decide_in_full(bare, target, costs, decision, attempt);
        }
        match ruled
            .at(bare.now)
            .decide_plain(bare.owner, target.key, costs, decision, attempt)
        {
            Plain::Decided(answer) => {
                bare.release(self, shard);
                Ok(answer)
            }
            Plain::Refused(row) => self.refuse_plain(bare, shard, row, costs, decision, attempt),
            Plain::Undecided => self.decide_in_full(bare, target, costs, decision, attempt),
        }
    }

    /// Refuses a request that the limits do not admit on a row, and releases the lock.
    #[inline(never)]
    fn refuse_plain(
        &self,
        bare: BareLock<'_>,
        shard: Shard<'_>,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        bare.of(self, shard)
            .refuse(row.into(), costs, Cause::Limits, decision, attempt)
    }

    /// Decides a request that is not plain, and releases the lock.
    #[inline(never)]
    fn decide_in_full(
        &self,
        bare: BareLock<'_>,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let mut locked = self.open(target.shard(), bare)?;
        let batches = target.set.batches.as_deref();
        match target.key {
            // Separate, so that a request without a key pays for nothing that only keys need.
            None => {
                let row = locked.shard.only_row();
                locked.decide_on_row(row, batches, costs, decision, attempt)
            }
            Some(key) => locked.decide_for_key(key, batches, costs, decision, attempt),
        }
    }
}

impl LockedShard<'_> {
    /// Decides for a key. With `batches`, may draw a batch of credit and admit the request from it.
    #[inline(always)]
    pub(in crate::engine) fn decide_for_key(
        &mut self,
        key: &KeyIdentity,
        batches: Option<&Batches>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        match self.row_for_key(key, costs)? {
            Ok(row) => self.decide_on_row(row, batches, costs, decision, attempt),
            Err(no_row) => self.without_a_row(no_row, costs, decision, attempt),
        }
    }

    #[inline(always)]
    fn decide_on_row(
        &mut self,
        row: Row<'_>,
        batches: Option<&Batches>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        match batches {
            None if self.shard.nobody_is_ahead(row) => self.take_or_refuse(row, costs, decision, attempt),
            Some(batches) if self.shard.nobody_is_ahead(row) => {
                self.draw_or_take(batches, row, costs, decision, attempt)
            }
            _ => self.decide_behind(row, costs, decision, attempt),
        }
    }

    /// Decides a request while others wait in the queue, whom it must not overtake. If serving the first of them
    /// empties the queue, it is this request's turn.
    #[cold]
    fn decide_behind(
        &mut self,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        if attempt == Attempt::BeforeWaiting && self.is_behind_others(row, costs) {
            // In the queue, a request that can never be met would keep everybody behind it waiting forever.
            let shard = self.shard.of(row);
            let Some(impossible) = shard.impossible_cost(row, costs) else {
                return Ok(Answer::MustWait);
            };
            decision.note_impossible(impossible);
            return Ok(Answer::Impossible);
        }
        self.serve_head(row.index)?;
        if !self.is_behind_others(row, costs) {
            return self.take_or_refuse(row, costs, decision, attempt);
        }
        self.refuse(row.into(), costs, Cause::Behind(None), decision, attempt)
    }

    /// Decides a request while the queue is empty.
    #[inline(always)]
    pub(in crate::engine) fn take_or_refuse(
        &self,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        if self.throttles(row, costs) > 0 {
            // The lack of a hold binds before the throttle: nobody knows when a hold is given back.
            let cause = if self.shard.wants_for_a_hold(costs) {
                Cause::HoldsFull
            } else {
                Cause::Limits
            };
            return self.refuse(row.into(), costs, cause, decision, attempt);
        }
        let mut admission = Admission::of(row.into(), costs);
        if !self.find_hold_for(&mut admission)? {
            return self.refuse(row.into(), costs, Cause::HoldsFull, decision, attempt);
        }
        self.take_all(&admission, decision, attempt)
    }

    /// Finds a free hold if the admission takes anything that has to be given back. Returns whether it can go on: if
    /// every hold is taken, it can only if everything it would hold belongs to limits in shadow.
    #[inline(always)]
    pub(in crate::engine) fn find_hold_for(&self, admission: &mut Admission<'_>) -> Result<bool, Box<Error>> {
        let (shard, costs) = (self.shard, admission.costs);
        if shard.set.takes_a_hold(costs) {
            match self.find_free_hold()? {
                FreeHold::None if shard.holds_in_shadow_only(costs) => {
                    admission.waived = LimitMask((shard.set.held_mask & shard.shadow_mask) as u16);
                }
                FreeHold::None => return Ok(false),
                found => admission.hold = Some(found),
            }
        }
        Ok(true)
    }

    /// A free hold. If the list of free holds is damaged, rebuilds it first.
    #[inline(always)]
    pub(in crate::engine) fn find_free_hold(&self) -> Result<FreeHold, Box<Error>> {
        match self.shard.memory.find_free_hold() {
            FreeHold::Damaged => {
                self.rebuild_or_poison()?;
                Ok(self.shard.memory.find_free_hold())
            }
            free => Ok(free),
        }
    }
}

impl SetEngine {
    /// Whether these costs take anything that has to be given back later. A cost of zero takes nothing, and in a set
    /// with credit only batches are held.
    #[inline]
    pub(in crate::engine) fn takes_a_hold(&self, costs: &Costs) -> bool {
        self.first_held(costs).is_some()
    }

    /// The first limit from which these costs take something that has to be given back later.
    #[inline]
    pub(in crate::engine) fn first_held(&self, costs: &Costs) -> Option<usize> {
        if u32::from(costs.limits.0) & self.held_mask == 0 || self.batches.is_some() {
            return None;
        }
        let is_held = |index: usize| self.held_mask & (1 << index) != 0;
        costs
            .iter()
            .find_map(|(index, cost)| (cost > 0 && is_held(index)).then_some(index))
    }
}

impl RuledShard<'_> {
    /// Whether these costs need a hold and none is free.
    pub(in crate::engine) fn wants_for_a_hold(&self, costs: &Costs) -> bool {
        self.set.takes_a_hold(costs) && self.memory.has_no_free_hold() && !self.holds_in_shadow_only(costs)
    }

    /// Whether every limit that is asked is in shadow.
    pub(in crate::engine) fn is_in_shadow(&self, costs: &Costs) -> bool {
        u32::from(costs.limits.0) & !self.shadow_mask == 0
    }

    /// Whether everything that would be held belongs to limits in shadow.
    fn holds_in_shadow_only(&self, costs: &Costs) -> bool {
        let bites = |index: usize| self.set.held_mask & !self.shadow_mask & (1 << index) != 0;
        !costs.iter().any(|(index, cost)| cost > 0 && bites(index))
    }
}
