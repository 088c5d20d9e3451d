//! Changes what a key is limited by: its tier or its own capacities, by name or through a request.
//!
//! A change is one transaction: the state of each limit whose rule changes is migrated as for a new
//! [definition](crate::engine::change::definitions), and the row starts a new generation.

use std::num::NonZeroU64;

use crate::choices::Kind;
use crate::engine::change::row_tier::RowTier;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait, LockedShard};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::engine::terms::decision::Costs;
use crate::engine::terms::definition_bits::TierIndex;
use crate::engine::terms::key_identity::KeyIdentity;
use crate::engine::terms::own_capacities::{OwnCapacities, RefusedCapacity};
use crate::engine::terms::plan::{MAX_MIGRATED_WORDS, MAX_WORDS_BY_CAPACITY};
use crate::error::{ChangeError, Error};
use crate::shm::layout::records::{JOURNAL_ENTRIES, MAX_LIMITS};
use crate::shm::layout::row::Row;

// Besides the states and the capacities, a change writes the word `generation`. A declaration with tiers is checked
// against the first bound.
const _: () = assert!(MAX_MIGRATED_WORDS + 2 <= JOURNAL_ENTRIES);
const _: () = assert!(MAX_LIMITS * (1 + MAX_WORDS_BY_CAPACITY) + 2 <= JOURNAL_ENTRIES);

/// How a change was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum GivenBy {
    /// By a call that does nothing else. The key's row is kept because of it.
    Name,
    /// By a request. The next request names the same again.
    Request,
}

/// The rules that a key should be under.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct RowChange<'a> {
    to: KeyTerms<'a>,
    given_by: GivenBy,
}

/// What differs from key to key: a set has tiers or overrides, never both.
#[derive(Clone, Copy, Debug)]
enum KeyTerms<'a> {
    Tier(TierIndex),
    /// For some limits. The others stay as they are.
    Capacities(&'a OwnCapacities),
}

impl Costs {
    /// The change that the request asks for, if any.
    #[inline(always)]
    pub(in crate::engine) fn row_change(&self) -> Option<RowChange<'_>> {
        let to = match (self.tier, &self.own_capacities) {
            (None, None) => return None,
            (Some(tier), _) => KeyTerms::Tier(tier),
            (None, Some(own)) => KeyTerms::Capacities(own),
        };
        Some(RowChange {
            to,
            given_by: GivenBy::Request,
        })
    }
}

impl RowChange<'_> {
    /// Whether the change gives a key without a row anything other than what is declared.
    fn gives_any(&self) -> bool {
        match self.to {
            KeyTerms::Tier(tier) => tier != TierIndex::default(),
            KeyTerms::Capacities(own) => own.are_any(),
        }
    }

    /// What a row says of its tier and capacities if it begins with the change.
    fn begun(&self) -> RowTier {
        let is_by_name = self.given_by == GivenBy::Name;
        match self.to {
            KeyTerms::Tier(tier) => RowTier {
                tier,
                is_assigned: is_by_name && tier != TierIndex::default(),
                ..RowTier::default()
            },
            KeyTerms::Capacities(own) => RowTier {
                capacities_by_request: !is_by_name && own.are_any(),
                ..RowTier::default()
            },
        }
    }
}

impl RuledShard<'_> {
    /// Whether a row is already limited as the change says, so that there is nothing to change or to refuse.
    #[inline]
    pub(in crate::engine) fn is_limited_so(&self, row: Row<'_>, change: RowChange<'_>) -> bool {
        match change.to {
            KeyTerms::Tier(tier) => tier == row.tier().tier,
            // Another definition may be unable to use the capacities that the key has.
            KeyTerms::Capacities(own) => self.rules.generation == 0 && !self.differ_from(row, own),
        }
    }

    /// Whether the key of a row has other capacities than those in `own`.
    fn differ_from(&self, row: Row<'_>, own: &OwnCapacities) -> bool {
        let has = |index: usize| self.limits.get(index)?.own_capacity(row);
        own.iter().any(|(index, capacity)| has(index) != capacity)
    }

    /// The first capacity in a change that the key of a row cannot have. It may even be one that the key has, given to
    /// it under another definition.
    pub(in crate::engine) fn refused_capacity(
        &self,
        row: Row<'_>,
        change: RowChange<'_>,
    ) -> Option<RefusedCapacity> {
        let KeyTerms::Capacities(own) = change.to else {
            return None;
        };
        let uncountable = own.iter().find_map(|(limit, capacity)| {
            let (rules, capacity) = (self.limits.get(limit)?, capacity?.get());
            let is_countable = matches!(rules.with_capacity(capacity), Ok(Some(_)));
            (!is_countable).then(|| RefusedCapacity {
                limit,
                capacity,
                definition: self.definition(),
                concurrency: 0,
            })
        });
        uncountable.or_else(|| self.refused_for_holds(row, own))
    }

    /// Refuses a capacity if the shard has too few holds for it: permits of this key could take all holds from the
    /// others, and that has to be declared on purpose. A declaration that is applied is checked in the same way. Limits
    /// that are not named count with the key's own capacity or the declared one, whichever is larger, since its own can
    /// always be taken away.
    fn refused_for_holds(&self, row: Row<'_>, own: &OwnCapacities) -> Option<RefusedCapacity> {
        let is_held = |limit: &&LimitRules| limit.kind == Kind::Concurrency;
        let (limit, capacity) = own.iter().find_map(|(index, capacity)| {
            let limit = self.limits.get(index).filter(is_held)?;
            let is_new = limit.own_capacity(row) != capacity;
            capacity.filter(|_| is_new).map(|capacity| (index, capacity))
        })?;
        let with = |capacity_of: &dyn Fn(usize) -> Option<Option<NonZeroU64>>| {
            let held = self.limits.iter().filter(is_held);
            held.map(|limit| match capacity_of(limit.index) {
                Some(own) => limit.by_capacity(own).burst,
                None => limit.of(row).burst.max(limit.burst),
            })
            .filter(|max| *max < u64::MAX)
            .fold(0, u64::saturating_add)
        };
        let before = with(&|index| {
            let limit = self.limits.get(index)?;
            own.of_limit(index).map(|_| limit.own_capacity(row))
        });
        let (holds, concurrency) = (self.memory.hold_capacity(), with(&|index| own.of_limit(index)));
        // What is no more than before is never too much.
        let is_too_much = concurrency > holds.max(self.rules.plan.max_held()).max(before);
        is_too_much.then(|| RefusedCapacity {
            limit,
            capacity: capacity.get(),
            definition: self.definition(),
            concurrency,
        })
    }

    /// What a key's row records about the key's tier and capacities after a change.
    fn changed_tier(&self, row: Row<'_>, change: RowChange<'_>) -> RowTier {
        let before = row.tier();
        let is_by_name = change.given_by == GivenBy::Name;
        match change.to {
            KeyTerms::Tier(tier) => RowTier {
                tier,
                is_assigned: if is_by_name {
                    tier != TierIndex::default()
                } else {
                    before.is_assigned && tier == before.tier
                },
                ..before
            },
            KeyTerms::Capacities(own) => {
                let by_request = if is_by_name {
                    // Clearing one capacity says nothing about the others.
                    before.capacities_by_request && !own.are_any()
                } else {
                    // What was given by name is kept as long as there is any.
                    before.capacities_by_request || !self.has_own_capacities(row)
                };
                let will_have = |limit: &LimitRules| {
                    let named = own.of_limit(limit.index);
                    named.unwrap_or_else(|| limit.own_capacity(row)).is_some()
                };
                RowTier {
                    capacities_by_request: by_request && self.limits.iter().any(will_have),
                    ..before
                }
            }
        }
    }
}

impl LockedShard<'_> {
    /// Changes what the key of a row is limited by, and serves its queue accordingly. If the key cannot have a
    /// capacity, changes nothing and returns it. A process that dies has changed everything or nothing.
    #[inline(never)]
    pub(in crate::engine) fn change_row(
        &mut self,
        row: Row<'_>,
        change: RowChange<'_>,
    ) -> Result<Result<(), RefusedCapacity>, Box<Error>> {
        let shard = self.shard;
        if let Some(refused) = shard.refused_capacity(row, change) {
            return Ok(Err(refused));
        }
        let (before, after) = (row.tier(), shard.changed_tier(row, change));
        let is_other_rule = match change.to {
            KeyTerms::Tier(tier) => tier != before.tier,
            KeyTerms::Capacities(own) => shard.differ_from(row, own),
        };
        let Some(word) = row.generation().filter(|_| is_other_rule || after != before) else {
            return Ok(Ok(()));
        };
        let generation = row.reference().generation;
        let mut transaction = shard.memory.journal().begin();
        if !is_other_rule {
            transaction.store(word, after.to_word(generation));
            return shard.commit(&mut transaction).map(Ok);
        }
        match change.to {
            KeyTerms::Tier(tier) => {
                let (old, new) = (shard.rules.of_tier(before.tier), shard.rules.of_tier(tier));
                for (old, new) in old.limits.iter().zip(&new.limits) {
                    if old.rule != new.rule {
                        new.migrate(old, row, &mut transaction, self.now);
                    }
                }
            }
            KeyTerms::Capacities(own) => {
                for (index, has) in own.iter() {
                    let Some(limit) = shard.limits.get(index) else {
                        continue;
                    };
                    let had = limit.own_capacity(row);
                    let (old, new) = (limit.by_capacity(had), limit.by_capacity(has));
                    if old.rule != new.rule {
                        new.migrate(&old, row, &mut transaction, self.now);
                    }
                    if let Some(word) = limit.capacity_word(row).filter(|_| has != had) {
                        transaction.store(word, has.map_or(0, NonZeroU64::get));
                    }
                }
            }
        }
        transaction.store(word, after.to_word(generation.wrapping_add(1)));
        shard.commit(&mut transaction)?;
        // The change stands, whatever is wrong with the queue; the next operation reports that.
        let _ = self.serve_next(row.index);
        Ok(Ok(()))
    }

    /// Gives a new row its tier or capacities. Nobody holds anything of it or waits for it yet.
    pub(in crate::engine) fn begin_with(
        &self,
        row: Row<'_>,
        change: RowChange<'_>,
    ) -> Result<(), Box<Error>> {
        let Some(word) = row.generation().filter(|_| change.gives_any()) else {
            return Ok(());
        };
        // What counts as unused under the rules of `default` may count as used under those of another tier.
        self.replenish_row(row.index);
        let mut transaction = self.shard.memory.journal().begin();
        transaction.store(word, change.begun().to_word(row.reference().generation));
        if let KeyTerms::Capacities(own) = change.to {
            for limit in &self.shard.limits {
                if let Some(word) = limit.capacity_word(row) {
                    let capacity = own.of_limit(limit.index).flatten();
                    transaction.store(word, capacity.map_or(0, NonZeroU64::get));
                }
            }
        }
        self.shard.commit(&mut transaction)
    }
}

impl SegmentEngine {
    /// Puts a key into a tier, and makes a row for it if it needs one. Returns false if the table has none left.
    pub(crate) fn assign(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        tier: TierIndex,
    ) -> Result<bool, Box<Error>> {
        let change = RowChange {
            to: KeyTerms::Tier(tier),
            given_by: GivenBy::Name,
        };
        self.change_key(shard, key, change)
    }

    /// Gives a key its own capacities, or takes them away. Makes a row if one is needed, and returns, as
    /// [`assign`](Self::assign) does.
    pub(crate) fn override_capacities(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        own: &OwnCapacities,
    ) -> Result<bool, Box<Error>> {
        let change = RowChange {
            to: KeyTerms::Capacities(own),
            given_by: GivenBy::Name,
        };
        self.change_key(shard, key, change)
    }

    fn change_key(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        change: RowChange<'_>,
    ) -> Result<bool, Box<Error>> {
        if self.try_change_key(shard, key, change)? {
            return Ok(true);
        }
        // Dead processes may be keeping rows that would do.
        self.reclaim_if_due(shard, LockWait::Timeout)?;
        self.try_change_key(shard, key, change)
    }

    fn try_change_key(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        change: RowChange<'_>,
    ) -> Result<bool, Box<Error>> {
        let mut locked = self.lock(shard, LockFor::Decide, LockWait::Timeout)?;
        let refused = match locked.shard.find_row_of(key.fingerprint) {
            Some(row) => locked.change_row(row, change)?.err(),
            None => match locked.shard.refused_capacity(locked.shard.absent_row(), change) {
                Some(refused) => Some(refused),
                // A key without a row is already limited like this.
                None if !change.gives_any() => None,
                None => match locked.add_row(key, &[])? {
                    Ok(row) => {
                        locked.begin_with(row, change)?;
                        None
                    }
                    Err(_) => return Ok(false),
                },
            },
        };
        drop(locked);
        refused.map_or(Ok(true), |refused| Err(shard.cannot_override(refused)))
    }
}

impl Shard<'_> {
    /// The error that says which capacity no key can have, and why. It allocates, so never call this under the lock.
    #[cold]
    pub(in crate::engine) fn cannot_override(&self, refused: RefusedCapacity) -> Box<Error> {
        let RefusedCapacity {
            limit,
            capacity,
            definition,
            concurrency,
        } = refused;
        let refused_by = || {
            let rules = self.set.rules.find(|rules| definition.is_of(rules.generation))?;
            rules.limits.get(limit)?.with_capacity(capacity).err()
        };
        let reason = if concurrency > 0 {
            let holds = self.memory.hold_capacity();
            format!(
                "the key could hold {concurrency} at once, and {holds} holds are too few for that; declare at \
                 least as many `holds`, which takes a new segment"
            )
        } else if let Some(invalid) = refused_by() {
            invalid.to_string()
        } else {
            "it is unlimited, or its capacity is adaptive".to_owned()
        };
        Box::new(Error::Change(ChangeError::CannotOverride {
            set: self.set.name.to_string(),
            limit: self.set.limit_name(limit),
            capacity,
            reason,
        }))
    }
}
