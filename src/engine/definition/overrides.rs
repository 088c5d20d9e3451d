//! Capacities that single keys have of their own, in place of those that the definition says.
//!
//! Each is a word of the row, zero where the key has none. So the rule of a limit may be another for each row, and is
//! worked out whenever it is put to the row: [`LimitRules::of`]. A set whose keys can have such has no tiers.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limit_rules::LimitRules;
use crate::engine::admit::decision::{Costs, Decision};
use crate::engine::definition::definition_bits::DefinitionBits;
use crate::engine::shard::key_identity::KeyIdentity;
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::error::Error;
use crate::limit::{InvalidLimit, Mark, Now, RuleOperations};
use crate::shm::layout::places::TicketPlace;
use crate::shm::layout::row::{Row, RowReference};

/// A limit as the key of a row has it.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack, where nothing is allocated under the lock"
)]
pub(crate) enum RowLimit<'a> {
    /// As the definition or the tier of the key has it.
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
