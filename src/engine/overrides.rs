//! Capacities that single keys have of their own, in place of those that the definition or the tier of the key says.
//!
//! Each is a word of the row, zero where the key has none. So the rule of a limit may be another for each row, and is
//! worked out of that of the tier whenever it is put to the row: [`LimitRules::of`]. A change begins a generation of the
//! row as a change of [tier](super::tier) does, after which the tier is the same.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::decision::Decision;
use super::key::KeyIdentity;
use super::limit_rules::LimitRules;
use super::locked::{LockWait, LockedPart};
use super::memory::{Row, TicketPlace};
use super::plan::Kind;
use super::row_reference::RowReference;
use super::segment::SegmentEngine;
use super::set::{DefinitionBits, Part, RuledPart};
use super::tier::RowTier;
use crate::error::Error;
use crate::limit::{InvalidLimit, Mark, Now, RuleOperations};

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
    pub(super) fn is_overridable(&self) -> bool {
        self.override_word.is_some()
    }

    /// The capacity that the key of a row has of its own.
    pub(crate) fn own_capacity(&self, row: Row<'_>) -> Option<NonZeroU64> {
        NonZeroU64::new(self.capacity_word(row)?.load(Ordering::Relaxed))
    }

    /// The word that says so.
    pub(super) fn capacity_word<'a>(&self, row: Row<'a>) -> Option<&'a AtomicU64> {
        row.state(self.override_word?, 1).first()
    }
}

impl RuledPart<'_> {
    /// Whether the key of a row has capacities of its own.
    pub(super) fn has_own_capacities(&self, row: Row<'_>) -> bool {
        self.limits.iter().any(|limit| limit.own_capacity(row).is_some())
    }

    /// Notes of a decision, when everything else is noted, with which capacities of its own the key of its row was decided
    /// on, where it has some. There is room for it.
    pub(super) fn note_own_capacities(&self, row: Row<'_>, decision: &mut Decision) {
        if self.differs_by_key && self.has_own_capacities(row) {
            decision.note_own_capacities(|index| self.limits.get(index)?.own_capacity(row));
        }
    }
}

/// What became of a capacity that a key was to have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overridden {
    Done,
    /// The key has no row, and can have none.
    NoRow,
    /// A shard has fewer holds than the key could have permits at once.
    TooFewHolds {
        /// Holds of a shard.
        holds: u64,
        /// What the concurrency limits of the key would add up to.
        concurrency: u64,
    },
}

impl RuledPart<'_> {
    /// Why a key cannot have a capacity: with it, permits of this key could take all holds of its shard from the others,
    /// which is declared on purpose or not at all. So for a key as for a declaration that is applied. The other limits
    /// count with what the key has of its own or would have without, whichever is more: that can always be taken away.
    fn too_few_holds(&self, row: Row<'_>, changed: usize, capacity: NonZeroU64) -> Option<Overridden> {
        let limit = self.limits.get(changed)?;
        if limit.kind != Kind::Concurrency {
            return None;
        }
        let with = |own: Option<NonZeroU64>| {
            let of_tiers = std::iter::once(self.rules).chain(&self.rules.tiers).map(|rules| {
                let held = rules
                    .limits
                    .iter()
                    .filter(|limit| limit.kind == Kind::Concurrency);
                held.map(|limit| {
                    if limit.index == changed {
                        return limit.by_capacity(own).most_at_once;
                    }
                    let own = limit.by_capacity(limit.own_capacity(row)).most_at_once;
                    own.max(limit.most_at_once)
                })
                .filter(|most| *most < u64::MAX)
                .fold(0, u64::saturating_add)
            });
            of_tiers.fold(0, u64::max)
        };
        let (holds, concurrency) = (self.memory.hold_capacity(), with(Some(capacity)));
        // What is less than before is no reason, however much it is.
        let most = holds
            .max(self.rules.plan.most_held())
            .max(with(limit.own_capacity(row)));
        (concurrency > most).then_some(Overridden::TooFewHolds { holds, concurrency })
    }
}

/// What a granted ticket says to its owner.
pub(super) struct GrantAsTold<'a> {
    part: RuledPart<'a>,
    ticket: TicketPlace<'a>,
    /// The row, where it tells how the limits stand, and when.
    present: Option<(Row<'a>, Now)>,
    /// By which definition the marks are.
    pub(super) definition: DefinitionBits,
    /// The row that was decided on.
    pub(super) row: RowReference,
}

impl<'a> RuledPart<'a> {
    /// What a granted ticket says, of a key whose row this is. With which capacities of the key's own it was granted is not
    /// noted: where they may be others by now, it is told how the limits stand now, and nothing of the grant is refunded.
    pub(super) fn grant_as_told(self, row: Row<'a>, ticket: TicketPlace<'a>, now: Now) -> GrantAsTold<'a> {
        let granted = ticket.row();
        if !self.set.has_overrides() || granted == row.reference() {
            return GrantAsTold {
                part: self,
                ticket,
                present: None,
                // Which may be an earlier one than the part is of by now.
                definition: ticket.definition(),
                row: granted,
            };
        }
        GrantAsTold {
            part: self,
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

impl GrantAsTold<'_> {
    /// How a limit stood.
    pub(super) fn mark(&self, index: usize) -> Mark {
        let limit = self.part.limits.get(index);
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
    /// Gives a key a capacity of its own, or takes it away. For that its row is made if it has none.
    pub(crate) fn override_capacity(
        &self,
        part: Part<'_>,
        key: &KeyIdentity,
        limit: usize,
        capacity: Option<NonZeroU64>,
    ) -> Result<Overridden, Box<Error>> {
        match self.try_override(part, key, limit, capacity)? {
            Overridden::NoRow => {}
            answer => return Ok(answer),
        }
        // Dead processes may keep rows that would do.
        self.reclaim_if_due(part, LockWait::Timeout)?;
        self.try_override(part, key, limit, capacity)
    }

    fn try_override(
        &self,
        part: Part<'_>,
        key: &KeyIdentity,
        limit: usize,
        capacity: Option<NonZeroU64>,
    ) -> Result<Overridden, Box<Error>> {
        let mut locked = self.lock(part)?;
        let found = locked.part.find_row_of(key.fingerprint);
        let row = found.unwrap_or(Row::ABSENT);
        if let Some(refused) = capacity.and_then(|capacity| locked.part.too_few_holds(row, limit, capacity)) {
            return Ok(refused);
        }
        match found {
            Some(row) => locked.change_own_capacity(row, limit, capacity)?,
            // It has none already.
            None if capacity.is_none() => {}
            None => match locked.add_row(key, &[])? {
                Ok(row) => locked.begin_with_own_capacity(row, limit, capacity)?,
                Err(_) => return Ok(Overridden::NoRow),
            },
        }
        Ok(Overridden::Done)
    }

    /// The capacity of each limit that a key has of its own, with the limit's position.
    pub(crate) fn own_capacities(
        &self,
        part: Part<'_>,
        key: &KeyIdentity,
    ) -> Result<Vec<(usize, NonZeroU64)>, Box<Error>> {
        // Nothing is allocated under the lock.
        let mut own = Vec::with_capacity(part.set.limits.len());
        let locked = self.lock_to_look(part)?;
        if let Some(row) = locked.part.find_row_of(key.fingerprint) {
            let capacities = locked.part.limits.iter();
            own.extend(capacities.filter_map(|limit| Some((limit.index, limit.own_capacity(row)?))));
        }
        Ok(own)
    }
}

impl LockedPart<'_> {
    /// Lets a key begin with a capacity of its own, of which the row has just been made, and nothing is held or waited
    /// for.
    fn begin_with_own_capacity(
        &self,
        row: Row<'_>,
        limit: usize,
        capacity: Option<NonZeroU64>,
    ) -> Result<(), Box<Error>> {
        let limit = self.part.limits.get(limit);
        let Some(word) = limit.and_then(|limit| limit.capacity_word(row)) else {
            return Ok(());
        };
        // What is as good as never used to the declared capacity may be anything to another.
        self.replenish_row(row.index);
        let mut transaction = self.part.memory.journal().begin();
        transaction.store(word, capacity.map_or(0, NonZeroU64::get));
        self.part.commit(transaction)
    }

    /// Changes a capacity that the key of a row has of its own, and serves its line by that. One transaction, so a process
    /// that dies has changed all of it or nothing.
    fn change_own_capacity(
        &mut self,
        row: Row<'_>,
        limit: usize,
        capacity: Option<NonZeroU64>,
    ) -> Result<(), Box<Error>> {
        let (part, tier) = (self.part.of(row), row.tier());
        let Some(limit) = part.limits.get(limit) else {
            return Ok(());
        };
        let before = limit.own_capacity(row);
        let (Some(word), Some(generation)) = (limit.capacity_word(row), row.generation()) else {
            return Ok(());
        };
        if before == capacity {
            return Ok(());
        }
        let (old, new) = (limit.by_capacity(before), limit.by_capacity(capacity));
        let mut transaction = part.memory.journal().begin();
        if old.rule != new.rule {
            new.carry_over(&old, row, &mut transaction, self.now);
        }
        transaction.store(word, capacity.map_or(0, NonZeroU64::get));
        let after = RowTier {
            former: Some(tier.tier),
            ..tier
        };
        let next = row.reference().generation.wrapping_add(1);
        transaction.store(generation, after.to_word(next));
        if let Some(changed_at) = part.changed_at(row) {
            transaction.store(changed_at, self.now.monotonic);
        }
        part.commit(transaction)?;
        // It stands, whatever is wrong with the line: the next operation says that.
        let _ = self.serve_next(row.index);
        Ok(())
    }
}
