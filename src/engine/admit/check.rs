//! Taking without holding: checks of one key, or of many at the same instant, and debits of budgets. Also forecasts,
//! which take nothing.

use crate::engine::admit::attempt::{Answer, Attempt};
use crate::engine::admit::charge::Admission;
use crate::engine::admit::plain::Plain;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::key_table::TableWords;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, SetEngine, Shard, ShardAt};
use crate::engine::shard::target::Target;
use crate::engine::terms::decided::NEVER;
use crate::engine::terms::decision::{Costs, Decision, Impossible};
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::resolution::Cause;
use crate::error::{Error, RequestError};
use crate::limit::{Assessment, RuleOperations, Standing};
use crate::shm::layout::prefetch::prefetch;
use crate::shm::layout::row::Row;
use crate::table;
use crate::units::BUCKET_ROWS;

/// How a limit stands, and when it will have more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(crate) limit: usize,
    pub(crate) standing: Standing,
    /// Whether as much could be taken now as it ever admits at once.
    pub(crate) is_full: bool,
    /// Nanoseconds until one more unit than now could be taken; `None` if it is full, or if time alone does not help.
    pub(crate) next_unit: Option<u64>,
    /// Units held by dead processes, which are left out.
    pub(crate) of_dead: u64,
}

/// What became of the debit of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Debited {
    /// Some of the budget was left.
    WithSomeLeft,
    /// Nothing of the budget was left; what was used is charged anyway.
    WithNothingLeft,
    /// There is no row to charge.
    Not,
}

impl SegmentEngine {
    /// Takes what `costs` names for good, or nothing. Returns whether it did. Overtakes nobody in the queue.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        target: Target<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<bool, Box<Error>> {
        target.set.require_forgettable(costs)?;
        self.try_acquire(target, costs, decision)
    }

    /// [Checks](Self::check) each of many keys, all at the same instant. `answers` has an entry for each key. A key
    /// that never admits the costs is merely refused. If the definition lets no key ever admit them, that is an error,
    /// and no key is charged. A capacity that a key cannot have is an error, too, but other keys may have been charged.
    pub(crate) fn check_many(
        &self,
        set: &SetEngine,
        keys: &[KeyIdentity],
        costs: &Costs,
        answers: &mut [(Decision, bool)],
    ) -> Result<(), Box<Error>> {
        set.require_forgettable(costs)?;
        let mut order: Vec<(u32, u32)> = (0_u32..)
            .zip(keys)
            .map(|(position, key)| (set.shard_of(Some(key)).index(), position))
            .collect();
        order.sort_unstable();
        // Fetches from memory overlap if they are all asked for at once: first the tags, then the rows that they name.
        for key in keys {
            set.shard_of(Some(key)).prefetch_tags(key);
        }
        for key in keys {
            set.shard_of(Some(key)).prefetch_row(key);
        }
        let now = self.now(set.shard(0));
        let mut is_any_admitted = false;
        for group in order.chunk_by(|one, other| one.0 == other.0) {
            let shard = set.shard(group[0].0);
            let mut locked = self.lock(shard, LockFor::DecideAt(now), LockWait::Timeout)?;
            let mut worth_a_look = false;
            for (_, position) in group {
                let position = *position as usize;
                let (Some(key), Some((decision, admitted))) = (keys.get(position), answers.get_mut(position))
                else {
                    continue;
                };
                let mut decide = |decision: &mut Decision, attempt| {
                    let (at, owner) = (locked.at, locked.owner);
                    match at.decide_plain(owner, Some(key), costs, decision, attempt) {
                        Plain::Decided(answer) => Ok(answer),
                        Plain::Refused(row) => {
                            locked.refuse(row.into(), costs, Cause::Limits, decision, attempt)
                        }
                        Plain::Undecided => locked.decide_for_key(key, None, costs, decision, attempt),
                    }
                };
                let mut answer = decide(decision, Attempt::First)?;
                if answer == Answer::RetryAfterReclaim {
                    worth_a_look = true;
                    answer = decide(decision, Attempt::Last)?;
                }
                if answer == Answer::Impossible {
                    let impossible = decision.impossible();
                    if matches!(impossible, Impossible::Capacity(_)) {
                        drop(locked);
                        return Err(shard.never_admissible(impossible));
                    }
                    // If some were admitted, the definition has changed in between.
                    if !is_any_admitted && locked.shard.is_impossible_for_every_key(costs) {
                        drop(locked);
                        return Err(shard.never_admissible(impossible));
                    }
                    locked.refuse_forever(key, costs, decision);
                }
                *admitted = answer == Answer::Admitted;
                is_any_admitted |= *admitted;
            }
            drop(locked);
            if worth_a_look {
                // For the next call. These keys have been answered, at the same instant as the others.
                self.reclaim_if_due(shard, LockWait::Timeout)?;
            }
        }
        Ok(())
    }

    /// Debits a budget on behalf of a permit, in full, whatever is left of it.
    pub(crate) fn debit(
        &self,
        set: &SetEngine,
        permit: &Decision,
        costs: &Costs,
        decision: &mut Decision,
    ) -> Result<Debited, Box<Error>> {
        let locked = self.lock(set.shard(permit.shard()), LockFor::Decide, LockWait::Timeout)?;
        // What all keys have together needs no row.
        let is_overall = costs.iter().all(|(index, _)| set.is_overall(index));
        let row = match locked.row_of(permit, is_overall)? {
            Ok(row) => row,
            Err(no_row) => {
                let answer = locked.without_a_row(no_row, costs, decision, Attempt::Last)?;
                return Ok(match answer {
                    Answer::Admitted => Debited::WithSomeLeft,
                    _ => Debited::Not,
                });
            }
        };
        let answer = locked.take_all(&Admission::of(row.into(), costs), decision, Attempt::Last)?;
        let is_admitted = answer == Answer::Admitted;
        // In shadow, a budget with nothing left admits the debit and does not charge it.
        let mut charged = costs.iter().zip(decision.iter());
        let is_charged = is_admitted && charged.all(|((_, used), (_, decided))| decided.cost() == used);
        if !is_charged {
            locked.charge_all(row, costs)?;
        }
        if set.has_overall() {
            locked.charge_used(row, costs);
        }
        Ok(match is_admitted {
            true => Debited::WithSomeLeft,
            false => Debited::WithNothingLeft,
        })
    }

    /// How each limit stands and when it will have more, if dead processes held nothing. Takes and counts nothing.
    pub(crate) fn forecast(&self, target: Target<'_>) -> Result<Vec<Outlook>, Box<Error>> {
        let mut outlooks = Vec::with_capacity(target.set.limits.len());
        let all = LimitMask(target.set.all_limits() as u16);
        let of_dead = self.look_at_row(target, all, |at, row| {
            outlooks.clear();
            let shard = at.shard.of(row);
            outlooks.extend(shard.limits.iter().map(|limit| at.outlook(&limit.of(row), row)));
            let throttled_for = at.shard.throttled_for(row, at.now);
            if throttled_for > 0 {
                outlooks
                    .iter_mut()
                    .for_each(|outlook| outlook.throttle(throttled_for));
            }
        })?;
        for outlook in &mut outlooks {
            outlook.of_dead = of_dead.get(outlook.limit).copied().unwrap_or(0);
        }
        Ok(outlooks)
    }
}

impl Outlook {
    /// Changes the outlook so that nothing can be taken for `wait` nanoseconds.
    fn throttle(&mut self, wait: u64) {
        let has_some = self.standing.remaining > 0;
        self.next_unit = match self.next_unit {
            Some(next) if !has_some => Some(next.max(wait)),
            None if !has_some => None,
            _ => Some(wait),
        };
        self.standing.remaining = 0;
        self.standing.reset_after = self.standing.reset_after.max(wait);
        self.is_full = false;
    }
}

impl ShardAt<'_> {
    fn outlook(&self, limit: &LimitRules, row: Row<'_>) -> Outlook {
        let standing = limit.rule.standing(limit.mark(row, self.now));
        let more = standing.remaining.saturating_add(1);
        let next_unit = if more > limit.burst {
            None
        } else {
            match limit.assess(row, self.now, more) {
                Assessment::Admissible => None,
                Assessment::Refused { retry_after } => retry_after.filter(|wait| *wait != NEVER),
            }
        };
        Outlook {
            limit: limit.index,
            standing,
            is_full: standing.remaining >= limit.burst,
            next_unit,
            of_dead: 0,
        }
    }
}

impl SetEngine {
    /// Rejects costs that take anything that has to be given back later. Whether a decision takes a hold is decided by
    /// the same function, so what passes here never takes one.
    #[inline(always)]
    fn require_forgettable(&self, costs: &Costs) -> Result<(), Box<Error>> {
        match self.first_held(costs) {
            None => Ok(()),
            Some(limit) => Err(self.must_be_held(limit)),
        }
    }

    #[cold]
    fn must_be_held(&self, limit: usize) -> Box<Error> {
        Box::new(Error::Request(RequestError::MustBeHeld {
            set: self.name.to_string(),
            limit: self.limit_name(limit),
        }))
    }
}

impl LockedShard<'_> {
    /// Charges what was used already, whatever the limits say.
    #[cold]
    fn charge_all(&self, row: Row<'_>, costs: &Costs) -> Result<(), Box<Error>> {
        let shard = self.shard.of(row);
        let mut transaction = self.shard.memory.journal().begin();
        for (index, used) in costs.iter() {
            if let Some(limit) = shard.rules.limits.get(index) {
                limit.of(row).charge(row, &mut transaction, self.now, used);
                transaction.count(&self.shard.counters(index).taken, used);
            }
        }
        self.shard.commit(&mut transaction)?;
        self.note_report(row);
        Ok(())
    }

    /// Refuses costs that one of many keys never admits.
    #[cold]
    fn refuse_forever(&self, key: &KeyIdentity, costs: &Costs, decision: &mut Decision) {
        let found = self.shard.find_row_of(key.fingerprint);
        let row = found.unwrap_or_else(|| self.shard.absent_row());
        self.assess_all(row.into(), costs, decision);
        // Whatever else the key would have to wait for, this is the reason.
        decision.refuse(Cause::Limits);
        self.count_refusal(row.into(), decision);
    }
}

impl RuledShard<'_> {
    /// Whether no key can ever admit the costs: in no tier, and with no capacity of its own.
    #[cold]
    fn is_impossible_for_every_key(&self, costs: &Costs) -> bool {
        let tiers = std::iter::once(self.rules).chain(&self.rules.tiers);
        let mut tiers = tiers.map(|rules| self.unruled().by(rules));
        tiers.all(|shard| shard.is_impossible_whatever_the_key(costs))
    }

    /// Whether a cost is above what its limit admits at once, and keys cannot have capacities of their own for that
    /// limit.
    fn is_impossible_whatever_the_key(&self, costs: &Costs) -> bool {
        costs.iter().any(|(index, cost)| {
            let limit = self.limits.get(index);
            limit.is_some_and(|limit| !limit.shadow && !limit.is_overridable() && cost > limit.burst)
        })
    }
}

impl Shard<'_> {
    /// Prefetches the tags that say where the row of a key is.
    fn prefetch_tags(&self, key: &KeyIdentity) {
        for bucket in key.fingerprint.buckets(self.memory.row_count() / BUCKET_ROWS) {
            if let Some(word) = self.memory.tag_word(bucket, 0) {
                prefetch(word);
            }
        }
    }

    /// Prefetches the row that the tags name. Looks without the lock, so it may be the wrong row, which only costs
    /// time.
    fn prefetch_row(&self, key: &KeyIdentity) {
        let row = table::probable(&TableWords::reading(self.memory), key.fingerprint);
        if let Some(word) = row.and_then(|row| self.row(row).generation()) {
            prefetch(word);
        }
    }
}
