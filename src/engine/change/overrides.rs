//! Capacities that single keys have of their own, in place of the declared ones.
//!
//! Each is a word of the row, zero if the key has none. So a limit's rule can differ from row to row, and
//! [`LimitRules::of`] works it out whenever it is applied to one. A set whose keys can have such capacities has no
//! tiers.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::choices::Scope;
use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::{LockFor, LockWait};
use crate::engine::shard::segment_engine::SegmentEngine;
use crate::engine::shard::set_engine::{RuledShard, Shard};
use crate::engine::terms::decision::{Costs, Decision};
use crate::engine::terms::definition_bits::DefinitionBits;
use crate::engine::terms::key_identity::KeyIdentity;
use crate::error::Error;
use crate::limit::{InvalidLimit, Mark, Now, RuleOperations};
use crate::shm::layout::places::TicketPlace;
use crate::shm::layout::row::{Row, RowReference};

/// A limit as it applies to the key of a row.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack, where nothing is allocated under the lock"
)]
pub(crate) enum RowLimit<'a> {
    /// As declared, or as in the key's tier.
    Shared(&'a LimitRules),
    /// With the key's own capacity.
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
    /// The limit as it applies to the key of a row.
    #[inline(always)]
    pub(crate) fn of(&self, row: Row<'_>) -> RowLimit<'_> {
        if self.override_word.is_none() {
            return RowLimit::Shared(self);
        }
        self.by_capacity(self.own_capacity(row))
    }

    /// The limit as it applies to a request, which may name capacities: a key without a row would start with those.
    #[inline(always)]
    pub(crate) fn of_request(&self, row: Row<'_>, costs: &Costs) -> RowLimit<'_> {
        if self.override_word.is_none() {
            return RowLimit::Shared(self);
        }
        self.by_capacity(self.requested_capacity(row, costs))
    }

    /// The capacity that the key of a row has of its own, or would start with through this request.
    fn requested_capacity(&self, row: Row<'_>, costs: &Costs) -> Option<NonZeroU64> {
        match &costs.own_capacities {
            Some(named) if row.is_absent() => named.of_limit(self.index).flatten(),
            _ => self.own_capacity(row),
        }
    }

    /// The limit with the key's own capacity, if it has one. A capacity with which the rule cannot count exactly counts
    /// as none: it is damage, or was set under another definition.
    #[inline(never)]
    pub(crate) fn by_capacity(&self, capacity: Option<NonZeroU64>) -> RowLimit<'_> {
        let own = capacity.and_then(|capacity| self.with_capacity(capacity.get()).ok()?);
        own.map_or(RowLimit::Shared(self), RowLimit::Own)
    }

    /// The limit with another capacity; `None` if keys cannot have their own.
    pub(crate) fn with_capacity(&self, capacity: u64) -> Result<Option<Self>, InvalidLimit> {
        let Some(terms) = self.terms.filter(|_| self.override_word.is_some()) else {
            return Ok(None);
        };
        let rule = self.rule.with_capacity(capacity, terms)?;
        Ok(Some(self.by_rule(rule)))
    }

    /// Whether keys can have their own capacity for this limit.
    pub(in crate::engine) fn is_overridable(&self) -> bool {
        self.override_word.is_some()
    }

    /// The key's own capacity for this limit, if it has one.
    pub(crate) fn own_capacity(&self, row: Row<'_>) -> Option<NonZeroU64> {
        NonZeroU64::new(self.capacity_word(row)?.load(Ordering::Relaxed))
    }

    /// The word of the row that holds the key's own capacity.
    pub(in crate::engine) fn capacity_word<'a>(&self, row: Row<'a>) -> Option<&'a AtomicU64> {
        row.states(Scope::Key).get(self.override_word?)
    }
}

impl RuledShard<'_> {
    /// Whether the key of a row has capacities of its own.
    pub(in crate::engine) fn has_own_capacities(&self, row: Row<'_>) -> bool {
        self.limits.iter().any(|limit| limit.own_capacity(row).is_some())
    }

    /// Adds to a decision, once everything else is noted, the key's own capacities with which it was made, if the key
    /// has any. There is room for them.
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

/// What a granted ticket tells its owner.
pub(in crate::engine) struct RecordedGrant<'a> {
    shard: RuledShard<'a>,
    ticket: TicketPlace<'a>,
    /// The row and the instant, if these tell how the limits stand, and not the ticket.
    present: Option<(Row<'a>, Now)>,
    /// The definition the marks belong to.
    pub(in crate::engine) definition: DefinitionBits,
    /// The row the request was granted on.
    pub(in crate::engine) row: RowReference,
}

impl<'a> RuledShard<'a> {
    /// What a granted ticket of the key in `row` tells its owner. The ticket does not say with which capacities of the
    /// key's own it was granted. If these may have changed since, the answer says how the limits stand now, and nothing
    /// of the grant is refunded.
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
                // May be older than the shard's present one.
                definition: ticket.definition(),
                row: granted,
            };
        }
        RecordedGrant {
            shard: self,
            ticket,
            present: Some((row, now)),
            definition: self.definition(),
            // At least two before the row's present generation, so that nothing of the grant can be refunded.
            row: RowReference {
                generation: granted.generation.wrapping_sub(1),
                ..granted
            },
        }
    }
}

impl RecordedGrant<'_> {
    /// How a limit stood at the grant, or stands now.
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
    /// The capacities that a key has of its own, each with its limit's position.
    pub(crate) fn own_capacities(
        &self,
        shard: Shard<'_>,
        key: &KeyIdentity,
    ) -> Result<Vec<(usize, NonZeroU64)>, Box<Error>> {
        // Nothing is allocated under the lock.
        let mut own = Vec::with_capacity(shard.set.limits.len());
        let locked = self.lock(shard, LockFor::Look, LockWait::Timeout)?;
        if let Some(row) = locked.shard.find_row_of(key.fingerprint) {
            let capacities = locked.shard.limits.iter();
            own.extend(capacities.filter_map(|limit| Some((limit.index, limit.own_capacity(row)?))));
        }
        Ok(own)
    }
}
