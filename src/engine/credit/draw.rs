//! Two-tier checks: a process draws batches of credit from a limit, and admits requests from them without the lock.
//!
//! A batch is charged to the limit when it is drawn, and recorded in a hold of the process, whose amount says [what
//! is left of it](CreditWord). So what a dead process left unspent is found and given back like anything else that it
//! held, and a request that would have to wait, or a reset, can take back what live processes have left.
//!
//! If batches are sized [automatically](BatchSize::Auto), the process that draws the k-th batch counts at least k
//! holds, so the batches of n processes together are at most a sixteenth of the burst times 1 + 1/2 + ... + 1/n.
//!
//! **At most batch - 1 units are left after a draw**, because the request that it is made for takes at least one. All
//! that is left was charged at the latest draw or later: when a request needs more, what is left is first given back
//! if the algorithm refunds, and first spent if it does not. So one instant, the hold's, is enough to tell how much
//! of what is left time has replenished since.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::settle::refund::Origin;
use crate::engine::shard::batches::{BatchSlot, Batches};
use crate::engine::shard::hold::{Ending, FreeHold};
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard};
use crate::engine::shard::target::Target;
use crate::engine::terms::credit_word::CreditWord;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::drawn::{Drawn, Period, Spent};
use crate::engine::terms::plan::{BatchSize, CreditPlan};
use crate::engine::terms::resolution::Cause;
use crate::error::{Error, SegmentError};
use crate::limit::{Mark, Now, RuleOperations};
use crate::shm::layout::places::{HoldPlace, HoldReference};
use crate::shm::layout::row::Row;
use crate::shm::lock::journal::{Transaction, count};
use crate::shm::time::clock::boot_nanos;
use crate::table::Fingerprint;

/// How long a process that detaches waits for locks to give its batches back, in nanoseconds.
const DETACH_WAIT: u64 = 10_000_000;

/// Which batches to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    /// Those from which nothing has been spent since the last look at them.
    Unused,
    All,
}

impl Target<'_> {
    #[inline]
    fn fingerprint(self) -> Fingerprint {
        self.key.map_or(Fingerprint::NONE, |key| key.fingerprint)
    }
}

impl Costs {
    /// The cost for the only limit of a set; zero if there is none.
    #[inline]
    fn of_the_only_limit(&self) -> u64 {
        if self.limits.0 == 1 { self.amounts[0] } else { 0 }
    }
}

impl Now {
    /// The time on the clock that windows follow.
    #[inline]
    fn of_windows(self, reads_utc: bool) -> u64 {
        if reads_utc { self.utc } else { self.monotonic }
    }
}

impl SegmentEngine {
    /// Admits from the batch of this process, without the lock. Returns whether there was one with enough left.
    #[inline(always)]
    pub(in crate::engine) fn spend(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<bool, Box<Error>> {
        match &target.set.batches {
            None => Ok(false),
            Some(batches) => {
                decision.owner = self.membership.owner()?;
                Ok(self.spend_from(target, batches, costs, decision))
            }
        }
    }

    /// The fast path: admits from this process's batch of a set without keys, if the batch does not end with a
    /// window. Reads and writes only what such a decision needs. `None` if it does not admit the request;
    /// [`spend`](Self::spend) may.
    #[inline(always)]
    pub(crate) fn spend_current(&self, set: &SetEngine, costs: &Costs) -> Option<Spent> {
        let batches = set.batches.as_deref()?;
        let cost = costs.of_the_only_limit();
        let batch = batches.current()?;
        if cost == 0
            // A forked child is not a participant yet, so the batch is not its own.
            || batch.owner != self.membership.owner_so_far()
            || batch.generation != self.generation_of(set)
            || self.is_known_to_be_removed()
        {
            return None;
        }
        let word = set.shard(0).memory.first_amount(batch.hold_index())?;
        let left = CreditWord::spend(word, batch.tag(), cost)?;
        Some(Spent { batch, cost, left })
    }

    /// Admits from the batch of a key, or of a set without keys, for the owner in `decision`. Returns whether it did.
    #[inline(never)]
    fn spend_from(
        &self,
        target: Target<'_>,
        batches: &Batches,
        costs: &Costs,
        decision: &mut Decision,
    ) -> bool {
        let cost = costs.of_the_only_limit();
        let shard = target.shard();
        let drawn = batches.find(shard.index(), target.fingerprint());
        let Some(drawn) = drawn.filter(|_| cost > 0) else {
            return false;
        };
        if drawn.owner != decision.owner
            || drawn.generation != self.generation_of(target.set)
            || self.is_known_to_be_removed()
        {
            return false;
        }
        let reads_utc = target.set.reads_utc;
        if drawn.period != Period::ALWAYS {
            let now = self.read_clocks(reads_utc).of_windows(reads_utc);
            // This reading may lag behind the segment clock, by which the next window may already have begun.
            let lag = if reads_utc { 0 } else { self.clock.max_lag() };
            if !drawn.period.contains(now.saturating_add(lag)) {
                return false;
            }
        }
        let hold = shard.memory.hold(drawn.hold.index);
        let word = hold.and_then(|hold| hold.amounts().first());
        let Some(left) = word.and_then(|word| CreditWord::spend(word, drawn.tag, cost)) else {
            return false;
        };
        decision.admit_from_credit(shard.index(), &drawn, cost, left);
        true
    }

    /// Gives back the batches of a set from which this process has spent nothing since the last call. Returns whether
    /// the caller has to come back: there are other batches, or some could not be given back because a lock could not
    /// be had.
    pub(crate) fn return_unused_batches(&self, set: &SetEngine) -> bool {
        let Some(batches) = &set.batches else {
            return false;
        };
        let return_all_unused = || self.return_batches(set, batches, Returned::Unused, LockWait::NOT);
        if return_all_unused() {
            return true;
        }
        // Before the last look: whoever draws a batch after it sends another notice.
        batches.set_unattended();
        return_all_unused() && batches.attend()
    }

    /// Closes this handle. With the last handle of the segment, the process detaches and gives back all its batches.
    /// Those that it cannot give back stay behind, as if it had died.
    fn close_batches(&self) {
        let wait = LockWait::Until(boot_nanos().saturating_add(DETACH_WAIT));
        for set in self.sets() {
            if let Some(batches) = set.batches.as_ref().filter(|batches| batches.close_handle()) {
                // The background worker finds what stays behind, even if a handle is just being opened.
                self.return_batches(set, batches, Returned::All, wait);
            }
        }
    }

    /// Gives back these batches. Returns whether any are left.
    fn return_batches(&self, set: &SetEngine, batches: &Batches, which: Returned, wait: LockWait) -> bool {
        let owner = self.membership.owner_so_far();
        let mut are_left = false;
        for (shard, slot) in batches.slots() {
            let shard = set.shard(shard);
            let Some(drawn) = slot.read().filter(|drawn| drawn.owner == owner && owner != 0) else {
                continue;
            };
            let left = shard.memory.hold(drawn.hold.index).map_or(0, |hold| {
                hold.amounts()
                    .first()
                    .map_or(0, |word| word.load(Ordering::Relaxed))
            });
            if which == Returned::Unused && slot.seen.swap(left, Ordering::Relaxed) != left {
                are_left = true;
                continue;
            }
            // Any other error is left for the next operation to report.
            are_left |= self
                .return_slot(shard, slot, &drawn, wait)
                .is_err_and(|error| matches!(*error, Error::Segment(SegmentError::LockStuck { .. })));
        }
        are_left
    }

    fn return_slot(
        &self,
        shard: Shard<'_>,
        slot: &BatchSlot,
        drawn: &Drawn,
        wait: LockWait,
    ) -> Result<(), Box<Error>> {
        let mut locked = self.lock(shard, LockFor::GiveBack, wait)?;
        if slot.read().as_ref() != Some(drawn) {
            // Another thread has drawn meanwhile.
            return Ok(());
        }
        slot.clear();
        if locked.owns(drawn.hold, drawn.owner) {
            locked.end_batch(drawn.hold.index)?;
        }
        locked.serve_next(drawn.row.index)
    }
}

impl Drop for SegmentEngine {
    fn drop(&mut self) {
        self.close_batches();
    }
}

/// A batch that is about to be drawn.
struct Draw {
    hold: DrawInto,
    /// Requests to count with it: the one that it is drawn for, and those admitted from the previous batch.
    requests: u64,
    units: u64,
    /// How many of them the request needs.
    needed: u64,
}

impl Draw {
    /// How many units the request leaves.
    fn left(&self) -> u64 {
        self.units.saturating_sub(self.needed)
    }
}

#[derive(Clone, Copy)]
enum DrawInto {
    Own(HoldReference),
    New(FreeHold),
}

impl<'a> RuledShard<'a> {
    /// The limit that processes draw from, and how they draw; `None` if there is none.
    fn credit(&self) -> Option<(&'a LimitRules, CreditPlan)> {
        let limit = self.rules.limits.first()?;
        Some((limit, limit.credit?))
    }

    /// The holds that record batches, of one row or of all rows.
    fn batches_of(&self, row: Option<u64>) -> impl Iterator<Item = HoldPlace<'a>> + use<'a> {
        let memory = self.memory;
        (0..memory.touched_holds())
            .filter_map(|index| memory.hold(index))
            .filter(move |hold| hold.is_taken() && row.is_none_or(|row| hold.row().index == row))
    }
}

impl LockedShard<'_> {
    /// Decides a request while nobody waits, and draws a batch if it can be admitted from one.
    #[inline(never)]
    pub(in crate::engine) fn draw_or_take(
        &self,
        batches: &Batches,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
        attempt: Attempt,
    ) -> Result<Answer, Box<Error>> {
        let shard = self.shard;
        if self.throttles(row, costs) > 0 {
            return self.refuse(row.into(), costs, Cause::Limits, decision, attempt);
        }
        let take = |decision: &mut Decision| self.take_or_refuse(row, costs, decision, attempt);
        let cost = costs.of_the_only_limit();
        let Some((limit, credit)) = shard
            .credit()
            .filter(|(limit, credit)| credit.batch.is_for(cost) && cost <= limit.burst)
        else {
            return take(decision);
        };
        let Some((slot, noted)) = batches.slot(shard.index(), row.key(), self.owner) else {
            return take(decision);
        };
        let own = noted.filter(|drawn| self.owns(drawn.hold, drawn.owner));
        let own = match own {
            Some(drawn) if drawn.fingerprint != row.key() => {
                self.end_batch(drawn.hold.index)?;
                None
            }
            own => own,
        };
        let hold = own.and_then(|drawn| shard.memory.hold(drawn.hold.index));
        let word = hold.and_then(|hold| hold.amounts().first());
        if let (Some(drawn), Some(word)) = (own, word) {
            if !self.is_good(&drawn) {
                self.take_batch_back(drawn.hold.index, None)?;
            } else if let Some(left) = CreditWord::spend(word, drawn.tag, cost) {
                // Another thread of this process has drawn meanwhile.
                decision.admit_from_credit(shard.index(), &drawn, cost, left);
                return Ok(Answer::Admitted);
            } else if limit.refunds && CreditWord::load(word).units() > 0 {
                // So that no batch or permit mixes units of two instants, which time replenishes at different times.
                self.take_batch_back(drawn.hold.index, Some(drawn.mark))?;
            }
        }
        let remaining = limit.rule.standing(limit.mark(row, self.now)).remaining;
        let left = word.map_or(CreditWord::new(0, 0), CreditWord::take);
        // At least one: drawing nothing makes no batch.
        let needed = cost.saturating_sub(left.units()).max(1);
        if remaining < needed {
            if let Some(word) = word {
                word.store(left.to_word(), Ordering::Release);
            }
            // The retry-after is for the whole cost: what is left may be taken back meanwhile, and is then lost if
            // the algorithm does not refund.
            return self.refuse(row.into(), costs, Cause::Limits, decision, attempt);
        }
        // Each process with a batch has one hold for it, and there are no other holds.
        let others = shard.memory.control().active.load(Ordering::Relaxed);
        let processes = others.saturating_add(u64::from(own.is_none()));
        let units = credit.batch.units(remaining, processes).max(needed);
        let hold = match own {
            Some(drawn) => DrawInto::Own(drawn.hold),
            // Nothing would be left for later requests.
            None if credit.batch == BatchSize::Auto && units == needed => return take(decision),
            None => match self.find_free_hold()? {
                FreeHold::None => return take(decision),
                free => DrawInto::New(free),
            },
        };
        let draw = Draw {
            hold,
            requests: left.requests() + 1,
            units,
            needed,
        };
        let Some(drawn) = self.draw(row, limit, credit, &draw, self.owner)? else {
            return take(decision);
        };
        slot.write(&drawn);
        if !self.engine.clock.is_virtual() {
            batches.note_draw();
        }
        decision.admit_from_credit(shard.index(), &drawn, cost, draw.left());
        Ok(Answer::Admitted)
    }

    /// Whether a batch may be spent: it was drawn under the shard's present definition, and its window is not over.
    fn is_good(&self, drawn: &Drawn) -> bool {
        drawn.generation == self.shard.rules.generation
            && drawn
                .period
                .contains(self.now.of_windows(self.shard.set.reads_utc))
    }

    /// Charges a batch and records it; `None` if the limit refused after all, or there is no hold.
    fn draw(
        &self,
        row: Row<'_>,
        limit: &LimitRules,
        credit: CreditPlan,
        draw: &Draw,
        owner: u64,
    ) -> Result<Option<Drawn>, Box<Error>> {
        let memory = self.shard.memory;
        let costs = Costs::of_one(limit.index, draw.units);
        let admission = Admission {
            requests: draw.requests,
            ..Admission::of(row.into(), &costs)
        };
        let mut mark = Mark::default();
        let note = |_, decided: Decided| mark = decided.mark;
        let recorded = self.charge(&admission, note, |transaction, _| {
            let hold = match draw.hold {
                DrawInto::Own(hold) => hold,
                DrawInto::New(free) => {
                    // The batch is empty until all of it is charged. The amount keeps its tag.
                    let empty = free
                        .index()
                        .and_then(|index| memory.hold(index)?.amounts().first());
                    let empty = empty.map_or(0, |word| CreditWord::take(word).emptied().to_word());
                    self.fill_hold(transaction, row, free, owner, |_| empty)?
                }
            };
            let place = memory.hold(hold.index)?;
            transaction.store(place.taken_at(), self.now.monotonic);
            transaction.store(place.row_word(), row.reference().to_word());
            Some((hold, place))
        })?;
        let Some((hold, place)) = recorded else {
            return Ok(None);
        };
        let Some(word) = place.amounts().first() else {
            return Ok(None);
        };
        // Only after the commit: a process that dies before it has charged nothing, and one that dies here has
        // charged what it can never spend.
        let tag = CreditWord::load(word).next_tag();
        let left = CreditWord::new(tag, draw.left());
        word.store(left.to_word(), Ordering::Release);
        let now = self.now.of_windows(self.shard.set.reads_utc);
        let period = if credit.window_coupled {
            Period {
                begin: now,
                end: now.saturating_add(limit.rule.standing(mark).reset_after),
            }
        } else {
            Period::ALWAYS
        };
        Ok(Some(Drawn {
            fingerprint: row.key(),
            owner,
            generation: self.shard.rules.generation,
            hold,
            tag,
            row: row.reference(),
            mark,
            units: draw.units,
            drawn_at: self.now.monotonic,
            period,
        }))
    }

    /// Counts requests that were admitted from a batch.
    fn count_requests(&self, limit: &LimitRules, row: Row<'_>, requests: u64) {
        count(&self.shard.counters(limit.index).admitted, requests);
        self.count_admitted(row.into(), requests);
    }

    /// Takes what is left of a batch, refunds what the algorithm still refunds of it, and counts the requests admitted from
    /// it. The mark says how the limit stood at the draw. Only the process that drew the batch knows it; without it,
    /// less is refunded.
    #[inline(never)]
    pub(in crate::engine) fn settle_batch(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        (word, mark): (&AtomicU64, Option<Mark>),
        origin: Origin,
        ending: Ending,
    ) {
        // Not journalled: a process that is taken for dead but lives may spend until this very instruction. If the
        // process that runs this dies before the commit, the units stay charged.
        let left = CreditWord::take(word);
        if left.units() == 0 && left.requests() == 0 {
            return;
        }
        let units = left.units();
        let refunded = match mark {
            None => self.refund_drawn(transaction, limit, row, units, origin),
            Some(mark) => {
                let charged = Decided::charged(mark, units);
                self.refund_unused(transaction, limit, row, units, &charged, origin)
            }
        };
        let counters = self.shard.counters(limit.index);
        let counter = if ending == Ending::OwnerDied {
            &counters.reclaimed
        } else {
            &counters.refunded
        };
        transaction.count(counter, refunded);
        self.count_requests(limit, row, left.requests());
    }

    /// Empties all batches of one row or of all rows, for a reset, which has already replenished the limit. Unless it
    /// also resets `counters`, the requests admitted from them are still counted later. Not journalled: it can be
    /// repeated.
    pub(in crate::engine) fn void_batches(&self, row: Option<u64>, counters: bool) {
        if self.shard.credit().is_none() {
            return;
        }
        for hold in self.shard.batches_of(row) {
            for word in hold.amounts() {
                let left = CreditWord::take(word);
                if !counters {
                    word.store(left.emptied().to_word(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Takes a batch back. Its process keeps the hold, which is empty then.
    fn take_batch_back(&self, index: u64, mark: Option<Mark>) -> Result<(), Box<Error>> {
        let (Some(hold), Some((limit, _))) = (self.shard.memory.hold(index), self.shard.credit()) else {
            return Ok(());
        };
        let origin = hold.origin();
        let row = self.shard.row(origin.row.index);
        let mut transaction = self.shard.memory.journal().begin();
        for word in hold.amounts() {
            self.settle_batch(&mut transaction, limit, row, (word, mark), origin, Ending::Undone);
        }
        self.shard.commit(&mut transaction)
    }

    /// Takes back batches of automatic size before another definition comes into force.
    pub(in crate::engine) fn end_automatic_batches(&self) -> Result<(), Box<Error>> {
        match self.shard.credit() {
            Some((_, credit)) if credit.batch == BatchSize::Auto => {
                self.take_batches_back(self.shard.only_row())
            }
            _ => Ok(()),
        }
    }

    /// Takes back what processes have drawn from a row, for a request that would otherwise have to wait for it.
    #[inline(never)]
    pub(in crate::engine) fn take_batches_back(&self, row: Row<'_>) -> Result<(), Box<Error>> {
        if self.shard.credit().is_none() || !self.shard.is_held(row) {
            return Ok(());
        }
        for index in 0..self.shard.memory.touched_holds() {
            let hold = self.shard.memory.hold(index);
            if hold.is_some_and(|hold| hold.is_taken() && hold.row().index == row.index) {
                self.take_batch_back(index, None)?;
            }
        }
        Ok(())
    }

    /// Takes a batch back and frees its hold.
    fn end_batch(&self, index: u64) -> Result<(), Box<Error>> {
        let mut transaction = self.shard.memory.journal().begin();
        self.free_hold(&mut transaction, index, Ending::Undone);
        self.shard.commit(&mut transaction)
    }

    /// Puts what a permit did not use, which has just been refunded to the limit, back into the batch that the permit
    /// is from, as if it were drawn now. Returns how many units these are. If that batch is gone, the limit keeps them
    /// all: in another batch they could be spent in a window that was never charged for them.
    #[inline(never)]
    pub(in crate::engine) fn put_back(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        permit: &Decision,
        refunded: u64,
    ) -> u64 {
        let (Some(batches), Some((_, credit)), 1..) =
            (&self.shard.set.batches, self.shard.credit(), refunded)
        else {
            return 0;
        };
        let drawn = batches.find(self.shard.index(), row.key()).filter(|drawn| {
            permit.is_from(drawn)
                && drawn.row == row.reference()
                && self.owns(drawn.hold, drawn.owner)
                && self.is_good(drawn)
        });
        let Some(drawn) = drawn else { return 0 };
        let hold = self.shard.memory.hold(drawn.hold.index);
        let Some(word) = hold.and_then(|hold| hold.amounts().first()) else {
            return 0;
        };
        // What is left stays less than a batch.
        let room = credit.batch.max_left(drawn.units);
        let (added, requests) = CreditWord::put_back(word, drawn.tag, refunded, room);
        limit.charge(row, transaction, self.now, added);
        self.count_requests(limit, row, requests);
        added
    }
}
