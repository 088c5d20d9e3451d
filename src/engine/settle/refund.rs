//! Giving back what was charged and not used.
//!
//! What was reserved is given back by the rule that it was charged by, or not at all. Each reservation says by which
//! definition, when and on which row it was made ([`Origin`]):
//!
//! | made | given back |
//! |---|---|
//! | on the row as it is, by the definition of the shard | what the algorithm [says](crate::limit::RuleOperations::refund) still counts of it |
//! | by an earlier definition, or for a key of another tier or with another capacity of its own | nothing: no process prices what another rule charged |
//! | before a reset, or on a row that has been given to another key since | nothing: it was replenished with the row |
//! | of a limit with `refund = false` | nothing |

use std::sync::atomic::Ordering;

use crate::engine::admit::decided::Decided;
use crate::engine::admit::decision::Decision;
use crate::engine::credit::credit_word::BatchShare;
use crate::engine::definition::definition_bits::DefinitionBits;
use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::shard::set_engine::ShardAt;
use crate::limit::Charge;
use crate::shm::layout::places::HoldPlace;
use crate::shm::layout::row::{Row, RowReference};
use crate::shm::lock::journal::Transaction;

/// When and where something was reserved, and by which definition.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Origin {
    /// On the segment clock.
    pub(in crate::engine) instant: u64,
    /// Not noted in a hold: there the instant has to tell.
    pub(in crate::engine) definition: Option<DefinitionBits>,
    pub(in crate::engine) row: RowReference,
    /// Units that were charged together with it and come after it: with time, it is replenished before them.
    pub(in crate::engine) units_after: u64,
}

impl Decision {
    /// When and where an admitted request reserved what it takes.
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
    /// When and where a batch was drawn, or a permit that has this hold was given out.
    pub(in crate::engine) fn origin(self) -> Origin {
        Origin {
            instant: self.taken_at().load(Ordering::Relaxed),
            definition: None,
            row: self.row(),
            units_after: 0,
        }
    }
}

impl ShardAt<'_> {
    /// Gives back what was reserved and not used; answers the units really given back.
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

    /// Gives back what a process had drawn, where it is not known how the limit stood then; answers the units really given
    /// back.
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
        if !limit.refunds || self.was_reset(limit, origin) || !self.is_by_present_rule(row, origin) {
            return 0;
        }
        limit.refund(row, transaction, self.now, unused, charge)
    }

    /// Whether it was reserved by the rule that the row is decided by.
    ///
    /// The instants tell definitions apart whose generations have the same lowest bits. Where there are no such bits, what
    /// was reserved at the very instant of a change counts as reserved before it.
    fn is_by_present_rule(&self, row: Row<'_>, origin: Origin) -> bool {
        if row.reference() != origin.row {
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

    /// Whether a reset of all rows (at zero there was none) has replenished it since. One of this row alone begins another
    /// generation of it.
    fn was_reset(&self, limit: &LimitRules, origin: Origin) -> bool {
        let reset_at = self.shard.counters(limit.index).reset_at.load(Ordering::Relaxed);
        reset_at > 0 && origin.instant <= reset_at
    }
}

/// What was charged, from where nothing is known of the limit.
fn charge(cost: u64, origin: Origin) -> Charge {
    Charge {
        instant: origin.instant,
        mark: None,
        cost,
        units_after: origin.units_after,
    }
}
