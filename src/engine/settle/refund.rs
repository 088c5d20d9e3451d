//! Refunds what was charged and not used.
//!
//! A reservation is refunded by the rule that charged it, or not at all. It says when, on which row and by which
//! definition it was made ([`Origin`]):
//!
//! | made | refunded |
//! |---|---|
//! | on the row as it is now, by the shard's definition | as much of it as still [counts](crate::limit::RuleOperations::refund) under the algorithm |
//! | by an earlier definition, or while the key had another tier or capacity | nothing: no rule prices what another one charged |
//! | before a reset, or on a row that another key has been given since | nothing: it was replenished with the row |
//! | of a limit with `refund = false` | nothing |
//!
//! What all keys have together is in no row, so it does not matter what becomes of the row of the key that took it.

use std::sync::atomic::Ordering;

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::shard::locked_shard::LockedShard;
use crate::engine::terms::credit_word::BatchShare;
use crate::engine::terms::decided::Decided;
use crate::engine::terms::decision::Decision;
use crate::engine::terms::definition_bits::DefinitionBits;
use crate::limit::Charge;
use crate::shm::layout::places::HoldPlace;
use crate::shm::layout::row::{Row, RowReference};
use crate::shm::lock::journal::Transaction;

/// When and where something was reserved, and by which definition.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Origin {
    /// On the segment clock.
    pub(in crate::engine) instant: u64,
    /// `None` for a hold, which does not record it: there, the instant has to do.
    pub(in crate::engine) definition: Option<DefinitionBits>,
    pub(in crate::engine) row: RowReference,
    /// Units charged together with it that come after it: time replenishes it before them.
    pub(in crate::engine) units_after: u64,
}

impl Decision {
    /// When and where an admitted request reserved its costs.
    pub(in crate::engine) fn origin(&self) -> Origin {
        Origin {
            instant: self.decided_at,
            definition: Some(self.definition),
            row: self.key().0,
            units_after: self.batch_share().map_or(0, BatchShare::left),
        }
    }
}

impl HoldPlace<'_> {
    /// When and where the batch or permit that has this hold was charged.
    pub(in crate::engine) fn origin(self) -> Origin {
        Origin {
            instant: self.taken_at().load(Ordering::Relaxed),
            definition: None,
            row: self.row(),
            units_after: 0,
        }
    }
}

impl LockedShard<'_> {
    /// Refunds what was reserved and not used. Returns the units actually refunded.
    pub(in crate::engine) fn refund_unused(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        unused: u64,
        reserved: &Decided,
        origin: Origin,
    ) -> u64 {
        let charge = Charge {
            mark: Some(reserved.mark),
            ..charge(reserved.cost(), origin)
        };
        self.refund(transaction, limit, row, unused, &charge, origin)
    }

    /// Refunds what a process had drawn, if it is not known how the limit stood at the time. Returns the units actually
    /// refunded.
    pub(in crate::engine) fn refund_drawn(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        drawn: u64,
        origin: Origin,
    ) -> u64 {
        self.refund(transaction, limit, row, drawn, &charge(drawn, origin), origin)
    }

    fn refund(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        unused: u64,
        charge: &Charge,
        origin: Origin,
    ) -> u64 {
        if !limit.refunds || self.was_reset(limit, origin) || !self.is_by_present_rule(limit, row, origin) {
            return 0;
        }
        limit.refund(row, transaction, self.now, unused, charge)
    }

    /// Whether it was charged by the rule that decides on the row now.
    ///
    /// The instants tell apart definitions whose generations share their lowest bits. Without those bits, a reservation
    /// made at the very instant of a change counts as made before it.
    fn is_by_present_rule(&self, limit: &LimitRules, row: Row<'_>, origin: Origin) -> bool {
        if !limit.is_overall() && row.reference() != origin.row {
            return false;
        }
        let generation = self.shard.rules.generation;
        if generation == 0 {
            // Nothing has changed yet.
            return true;
        }
        let applied_at = self.shard.memory.control().applied_at.load(Ordering::Relaxed);
        match origin.definition {
            Some(bits) => bits.is_of(generation) && origin.instant >= applied_at,
            None => origin.instant > applied_at,
        }
    }

    /// Whether a reset of all rows has replenished it since; zero means that there was none. A reset of this row alone
    /// begins a new generation of the row.
    fn was_reset(&self, limit: &LimitRules, origin: Origin) -> bool {
        let reset_at = self.shard.counters(limit.index).reset_at.load(Ordering::Relaxed);
        reset_at > 0 && origin.instant <= reset_at
    }
}

/// A charge at which it is not known how the limit stood.
fn charge(cost: u64, origin: Origin) -> Charge {
    Charge {
        instant: origin.instant,
        mark: None,
        cost,
        units_after: origin.units_after,
    }
}
