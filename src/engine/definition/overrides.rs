//! Capacities that single keys have of their own, in place of those that the definition or the tier of the key says.
//!
//! Each is a word of the row, zero where the key has none. So the rule of a limit may be another for each row, and is
//! worked out of that of the tier whenever it is put to the row: [`LimitRules::of`]. A change begins a generation of the
//! row as a change of [tier](super::row_tier) does, after which the tier is the same.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limit_rules::LimitRules;
use super::plan::{Kind, MAX_WORDS_BY_CAPACITY};
use super::row_tier::RowTier;
use crate::engine::admit::decision::{Costs, Decision, LimitMask};
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::locked_shard::{LockWait, LockedShard};
use crate::engine::shard::row_reference::RowReference;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{DefinitionBits, RuledShard, Shard};
use crate::engine::shard::shard_memory::{Row, TicketPlace};
use crate::error::Error;
use crate::limit::{InvalidLimit, Mark, Now, RuleOperations};
use crate::shm::layout::records::{JOURNAL_ENTRIES, MAX_LIMITS};

// A change of all capacities of a key is one transaction: of each limit the capacity and its state, the word `generation`,
// and when it changed.
const _: () = assert!(MAX_LIMITS * (1 + MAX_WORDS_BY_CAPACITY) + 2 <= JOURNAL_ENTRIES);

/// A limit as the key of a row has it.
#[derive(Debug)]
pub(crate) enum RowLimit<'a> {
    /// As its tier.
    Shared(&'a LimitRules),
    /// With a capacity of its own.
    Own(LimitRules),
}

impl Deref for RowLimit<'_> {
    type Target = LimitRules;

    #[inline(always)]
    fn deref(&self) -> &LimitRules {
        match self {
            Self::Shared(limit) => limit,
            Self::Own(limit) => limit,
        }
    }
}

impl LimitRules {
    /// The limit as the key of a row has it.
    #[inline(always)]
    pub(crate) fn of(&self, row: Row<'_>) -> RowLimit<'_> {
        if self.override_word.is_none() {
            return RowLimit::Shared(self);
        }
        self.by_capacity(self.own_capacity(row))
    }

    /// As [`of`](Self::of), for a request that may name capacities: a key that has no row yet would begin with those.
    #[inline(always)]
    pub(crate) fn of_request(&self, row: Row<'_>, costs: &Costs) -> RowLimit<'_> {
        if self.override_word.is_none() {
            return RowLimit::Shared(self);
        }
        self.by_capacity(self.requested_capacity(row, costs))
    }

    /// The capacity of its own that the key of a row has, or would begin with by a request.
    fn requested_capacity(&self, row: Row<'_>, costs: &Costs) -> Option<NonZeroU64> {
        match &costs.own_capacities {
            Some(named) if row.is_absent() => named.of_limit(self.index).flatten(),
            _ => self.own_capacity(row),
        }
    }

    /// The limit with a capacity of a key's own, where it has one. One that cannot be counted with exactly, which is
    /// damage or was declared otherwise when it was set, is as none.
    #[inline(never)]
    pub(crate) fn by_capacity(&self, capacity: Option<NonZeroU64>) -> RowLimit<'_> {
        let own = capacity.and_then(|capacity| self.with_capacity(capacity.get()).ok()?);
        own.map_or(RowLimit::Shared(self), RowLimit::Own)
    }

    /// The limit with another capacity; none where no key can have a capacity of its own.
    pub(crate) fn with_capacity(&self, capacity: u64) -> Result<Option<Self>, InvalidLimit> {
        let Some(terms) = self.terms.filter(|_| self.override_word.is_some()) else {
            return Ok(None);
        };
        let rule = self.rule.with_capacity(capacity, terms)?;
        Ok(Some(self.by_rule(rule)))
    }

    /// Whether keys can have capacities of their own of it.
    pub(in crate::engine) fn is_overridable(&self) -> bool {
        self.override_word.is_some()
    }

    /// The capacity that the key of a row has of its own.
    pub(crate) fn own_capacity(&self, row: Row<'_>) -> Option<NonZeroU64> {
        NonZeroU64::new(self.capacity_word(row)?.load(Ordering::Relaxed))
    }

    /// The word that says so.
    pub(in crate::engine) fn capacity_word<'a>(&self, row: Row<'a>) -> Option<&'a AtomicU64> {
        row.state(self.override_word?, 1).first()
    }
}

impl RuledShard<'_> {
    /// Whether the key of a row has capacities of its own.
    pub(in crate::engine) fn has_own_capacities(&self, row: Row<'_>) -> bool {
        self.limits.iter().any(|limit| limit.own_capacity(row).is_some())
    }

    /// Whether it has any when it has been given others.
    fn will_have_any(&self, row: Row<'_>, own: &OwnCapacities) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|limit| {
            let has = || limit.own_capacity(row);
            own.of_limit(limit.index).unwrap_or_else(has).is_some()
        })
    }

    /// Notes of a decision, when everything else is noted, with which capacities of its own the key of its row was decided
    /// on, where it has some. There is room for it.
    pub(in crate::engine) fn note_own_capacities(
        &self,
        row: Row<'_>,
        costs: &Costs,
        decision: &mut Decision,
    ) {
        let capacity = |index: usize| self.limits.get(index)?.requested_capacity(row, costs);
        if self.differs_by_key && costs.limits.iter().any(|index| capacity(index).is_some()) {
            decision.note_own_capacities(capacity);
        }
    }
}

/// Capacities that a key is to have of its own of some limits, or none where it is to have what its tier says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnCapacities {
    limits: LimitMask,
    capacities: [Option<NonZeroU64>; MAX_LIMITS],
}

impl OwnCapacities {
    pub(crate) fn of_one(limit: usize, capacity: Option<NonZeroU64>) -> Self {
        let mut own = Self::default();
        own.set(limit, capacity);
        own
    }

    pub(crate) fn set(&mut self, limit: usize, capacity: Option<NonZeroU64>) {
        if let Some(place) = self.capacities.get_mut(limit) {
            *place = capacity;
            self.limits.insert(limit);
        }
    }

    /// What is said of a limit, if anything is.
    pub(in crate::engine) fn of_limit(&self, limit: usize) -> Option<Option<NonZeroU64>> {
        let is_named = self.limits.contains(limit % MAX_LIMITS);
        self.capacities.get(limit).copied().filter(|_| is_named)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Option<NonZeroU64>)> + '_ {
        let limits = self.limits.iter();
        limits.map(|limit| (limit, self.capacities[limit % MAX_LIMITS]))
    }

    /// Whether the key is to have any.
    pub(in crate::engine) fn are_any(&self) -> bool {
        self.iter().any(|(_, capacity)| capacity.is_some())
    }
}

/// Who says which capacities a key has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum GivenBy {
    /// A call that does nothing else: the row of the key is kept for them.
    Name,
    /// A request, as the next one does.
    Request,
}

impl RuledShard<'_> {
    /// Refuses capacities that the key of a row does not have and cannot have: in whatever tier it is or comes into, it must
    /// be possible to count with them.
    #[inline]
    pub(in crate::engine) fn require_own_capacities(
        &self,
        row: Row<'_>,
        own: &OwnCapacities,
    ) -> Result<(), Box<Error>> {
        if self.has_all(row, own) {
            return Ok(());
        }
        self.require_new_capacities(row, own)
    }

    fn has_all(&self, row: Row<'_>, own: &OwnCapacities) -> bool {
        let has = |index: usize| self.limits.get(index)?.own_capacity(row);
        own.iter().all(|(index, capacity)| has(index) == capacity)
    }

    #[cold]
    fn require_new_capacities(&self, row: Row<'_>, own: &OwnCapacities) -> Result<(), Box<Error>> {
        for (index, capacity) in own.iter() {
            let Some(capacity) = capacity else { continue };
            for limit in self.rules.in_every_tier(index) {
                let refused = match limit.with_capacity(capacity.get()) {
                    Ok(Some(_)) => continue,
                    Ok(None) => "it is unlimited, or finds its capacity by itself".to_owned(),
                    Err(invalid) => invalid.to_string(),
                };
                return Err(self.cannot_override(index, capacity, refused));
            }
        }
        self.require_holds(row, own)
    }

    /// Refuses a key what its shard has too few holds for: with it, permits of this key could take all holds from the others,
    /// which is declared on purpose or not at all. So for a key as for a declaration that is applied. The other limits
    /// count with what the key has of its own or would have without, whichever is more: that can always be taken away.
    fn require_holds(&self, row: Row<'_>, own: &OwnCapacities) -> Result<(), Box<Error>> {
        let is_held = |limit: &&LimitRules| limit.kind == Kind::Concurrency;
        let mut changed = own.iter().filter_map(|(index, capacity)| {
            let limit = self.limits.get(index).filter(is_held)?;
            capacity
                .filter(|_| limit.own_capacity(row) != capacity)
                .map(|capacity| (index, capacity))
        });
        let Some((index, capacity)) = changed.next() else {
            return Ok(());
        };
        let with = |capacity_of: &dyn Fn(usize) -> Option<Option<NonZeroU64>>| {
            let of_tiers = std::iter::once(self.rules).chain(&self.rules.tiers).map(|rules| {
                let held = rules.limits.iter().filter(is_held);
                held.map(|limit| match capacity_of(limit.index) {
                    Some(own) => limit.by_capacity(own).burst,
                    None => limit.of(row).burst.max(limit.burst),
                })
                .filter(|max| *max < u64::MAX)
                .fold(0, u64::saturating_add)
            });
            of_tiers.fold(0, u64::max)
        };
        let before = with(&|index| {
            let limit = self.limits.get(index)?;
            own.of_limit(index).map(|_| limit.own_capacity(row))
        });
        let (holds, concurrency) = (self.memory.hold_capacity(), with(&|index| own.of_limit(index)));
        // What is less than before is no reason, however much it is.
        if concurrency <= holds.max(self.rules.plan.max_held()).max(before) {
            return Ok(());
        }
        let reason = format!(
            "the key could hold {concurrency} at once, and {holds} holds are too few for that; declare `holds` for as \
             many, which takes a new segment"
        );
        Err(self.cannot_override(index, capacity, reason))
    }

    fn cannot_override(&self, limit: usize, capacity: NonZeroU64, reason: String) -> Box<Error> {
        Box::new(Error::CannotOverride {
            set: self.set.name.to_string(),
            limit: self.set.limit_name(limit),
            capacity: capacity.get(),
            reason,
        })
    }
}

/// What a granted ticket says to its owner.
pub(in crate::engine) struct RecordedGrant<'a> {
    shard: RuledShard<'a>,
    ticket: TicketPlace<'a>,
    /// The row, where it tells how the limits stand, and when.
    present: Option<(Row<'a>, Now)>,
    /// By which definition the marks are.
    pub(in crate::engine) definition: DefinitionBits,
    /// The row that was decided on.
    pub(in crate::engine) row: RowReference,
}

impl<'a> RuledShard<'a> {
    /// What a granted ticket says, of a key whose row this is. With which capacities of the key's own it was granted is not
    /// noted: where they may be others by now, the answer says how the limits stand now, and nothing of the grant is
    /// refunded.
    pub(in crate::engine) fn recorded_grant(
        self,
        row: Row<'a>,
        ticket: TicketPlace<'a>,
        now: Now,
    ) -> RecordedGrant<'a> {
        let granted = ticket.row();
        if !self.set.has_overrides() || granted == row.reference() {
            return RecordedGrant {
                shard: self,
                ticket,
                present: None,
                // Which may be an earlier one than the shard is of by now.
                definition: ticket.definition(),
                row: granted,
            };
        }
        RecordedGrant {
            shard: self,
            ticket,
            present: Some((row, now)),
            definition: self.definition(),
            // Two before that of the row at least, of which nothing is known.
            row: RowReference {
                generation: granted.generation.wrapping_sub(1),
                ..granted
            },
        }
    }
}

impl RecordedGrant<'_> {
    /// How a limit stood.
    pub(in crate::engine) fn mark(&self, index: usize) -> Mark {
        let limit = self.shard.limits.get(index);
        match (self.present, limit) {
            (Some((row, now)), Some(limit)) => limit.of(row).mark(row, now),
            _ => {
                let limit = self.ticket.limit(index);
                limit.map(|limit| limit.mark()).unwrap_or_default()
            }
        }
    }
}

impl SegmentEngine {
    /// Gives a key capacities of its own, or takes them away, for which its row is made if it has none; answers whether it
    /// has one then, where it needs one: the table may have none left.
    pub(crate) fn override_capacities(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        own: &OwnCapacities,
    ) -> Result<bool, Box<Error>> {
        if self.try_override(shard, key, own)? {
            return Ok(true);
        }
        // Dead processes may keep rows that would do.
        self.reclaim_if_due(shard, LockWait::Timeout)?;
        self.try_override(shard, key, own)
    }

    fn try_override(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
        own: &OwnCapacities,
    ) -> Result<bool, Box<Error>> {
        let mut locked = self.lock(shard)?;
        let found = locked.shard.find_row_of(key.fingerprint);
        locked
            .shard
            .require_own_capacities(found.unwrap_or(Row::ABSENT), own)?;
        match found {
            Some(row) => locked.change_own_capacities(row, own, GivenBy::Name)?,
            // It has none already.
            None if !own.are_any() => {}
            None => match locked.add_row(key, &[])? {
                Ok(row) => locked.begin_with(row, RowTier::default(), Some(own))?,
                Err(_) => return Ok(false),
            },
        }
        Ok(true)
    }

    /// The capacity of each limit that a key has of its own, with the limit's position.
    pub(crate) fn own_capacities(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
    ) -> Result<Vec<(usize, NonZeroU64)>, Box<Error>> {
        // Nothing is allocated under the lock.
        let mut own = Vec::with_capacity(shard.set.limits.len());
        let locked = self.lock_to_look(shard)?;
        if let Some(row) = locked.shard.find_row_of(key.fingerprint) {
            let capacities = locked.shard.limits.iter();
            own.extend(capacities.filter_map(|limit| Some((limit.index, limit.own_capacity(row)?))));
        }
        Ok(own)
    }
}

impl LockedShard<'_> {
    /// Changes capacities that the key of a row has of its own, and serves its queue by them. One transaction, so a
    /// process that dies has changed all of it or nothing.
    #[inline]
    pub(in crate::engine) fn change_own_capacities(
        &mut self,
        row: Row<'_>,
        own: &OwnCapacities,
        given_by: GivenBy,
    ) -> Result<(), Box<Error>> {
        let has_all = self.shard.has_all(row, own);
        let keeps_the_row = given_by == GivenBy::Name && own.are_any();
        if has_all && !(keeps_the_row && row.tier().capacities_by_request) {
            return Ok(());
        }
        self.write_own_capacities(row, own, given_by, has_all)
    }

    #[cold]
    fn write_own_capacities(
        &mut self,
        row: Row<'_>,
        own: &OwnCapacities,
        given_by: GivenBy,
        has_all: bool,
    ) -> Result<(), Box<Error>> {
        let (shard, before) = (self.shard.of(row), row.tier());
        let Some(word) = row.generation() else {
            return Ok(());
        };
        let generation = row.reference().generation;
        let by_request = match given_by {
            // Those that were given by name are kept for as long as there are any.
            GivenBy::Request => before.capacities_by_request || !shard.has_own_capacities(row),
            // To clear one says nothing of the others.
            GivenBy::Name => before.capacities_by_request && !own.are_any(),
        };
        let after = RowTier {
            capacities_by_request: by_request && shard.will_have_any(row, own),
            ..before
        };
        let mut transaction = shard.memory.journal().begin();
        if has_all {
            transaction.store(word, after.to_word(generation));
            return shard.commit(transaction);
        }
        for (index, capacity) in own.iter() {
            let Some(limit) = shard.limits.get(index) else {
                continue;
            };
            let before = limit.own_capacity(row);
            let Some(word) = limit.capacity_word(row).filter(|_| before != capacity) else {
                continue;
            };
            let (old, new) = (limit.by_capacity(before), limit.by_capacity(capacity));
            if old.rule != new.rule {
                new.migrate(&old, row, &mut transaction, self.now);
            }
            transaction.store(word, capacity.map_or(0, NonZeroU64::get));
        }
        let after = RowTier {
            former: Some(before.tier),
            ..after
        };
        transaction.store(word, after.to_word(generation.wrapping_add(1)));
        if let Some(changed_at) = shard.changed_at(row) {
            transaction.store(changed_at, self.now.monotonic);
        }
        shard.commit(transaction)?;
        // It stands, whatever is wrong with the queue: the next operation says that.
        let _ = self.serve_next(row.index);
        Ok(())
    }
}
