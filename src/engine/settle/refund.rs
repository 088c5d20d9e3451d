//! Giving back what was charged and not used.
//!
//! What was reserved under one definition is never priced by another. Each reservation says by which definition, when
//! and on which row it was made ([`Origin`]):
//!
//! | made | given back |
//! |---|---|
//! | on the row as it is, by the definition of the shard | what time has not replenished since |
//! | by the one before that | the same, migrated to the present rule as the limit itself was at the change |
//! | for a key of another tier, where its limits changed once since and the definition did not | as by the definition before |
//! | for a key with another capacity of its own, in that tier or another, likewise | the same, where a permit knows that capacity; otherwise nothing |
//! | by an earlier one, or one that cannot be read any more | nothing: nothing is certain |
//! | before a reset, or on a row that has been given to another key since | nothing: it was replenished with the row |

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use crate::engine::admit::decided::Decided;
use crate::engine::admit::decision::Decision;
use crate::engine::credit::credit_word::BatchShare;
use crate::engine::definition::definition_bits::DefinitionBits;
use crate::engine::definition::limit_rules::LimitRules;
use crate::engine::definition::row_tier::RowAge;
use crate::engine::definition::set_rules::SetRules;
use crate::engine::shard::set_engine::ShardAt;
use crate::limit::{Mark, Rule, RuleOperations};
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
    pub(in crate::engine) capacity: ReservedBy,
}

/// With which capacity of a key's own something was reserved.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum ReservedBy {
    /// With this one, or none.
    Own(Option<NonZeroU64>),
    /// Neither holds nor tickets say that.
    Unknown,
}

/// The definition that something was reserved by.
enum Age<'a> {
    /// That of the shard.
    Present,
    /// The one before it, and when it was followed by that.
    Former { rules: &'a SetRules, applied_at: u64 },
    /// One that nothing is known of.
    Earlier,
}

impl Decision {
    /// When and where an admitted request reserved what it takes of a limit.
    pub(in crate::engine) fn origin(&self, limit: usize) -> Origin {
        Origin {
            instant: self.decided_at,
            definition: Some(self.definition),
            row: self.key().0,
            units_after: self.batch_share().map_or(0, BatchShare::left),
            capacity: ReservedBy::Own(self.own_capacity(limit)),
        }
    }
}

impl HoldPlace<'_> {
    /// When and where a permit that has this hold reserved what is refunded when its process dies.
    pub(in crate::engine) fn origin(self) -> Origin {
        Origin {
            instant: self.taken_at().load(Ordering::Relaxed),
            definition: None,
            row: self.row(),
            units_after: 0,
            capacity: ReservedBy::Unknown,
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
        let left = self.left(limit, row, Some(reserved.mark), reserved.cost(), origin);
        self.refund(transaction, limit, row, unused, left, origin)
    }

    /// Gives back what a dead holder had reserved; answers the units really given back.
    pub(in crate::engine) fn refund_dead(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        reserved: u64,
        origin: Origin,
    ) -> u64 {
        let left = self.left(limit, row, None, reserved, origin);
        self.refund(transaction, limit, row, reserved, left, origin)
    }

    /// What is left, scaled by the present rule, of what was reserved.
    fn left(
        &self,
        limit: &LimitRules,
        row: Row<'_>,
        mark: Option<Mark>,
        reserved: u64,
        origin: Origin,
    ) -> u128 {
        let until_now = |from: u64| self.now.monotonic.saturating_sub(from);
        let mark_of = |rule: &Rule| mark.map(|mark| rule.mark_before_last(mark, origin.units_after));
        let left_of = |former: &SetRules, capacity: Option<NonZeroU64>, changed_at: u64| {
            let former = former.limits.get(limit.index);
            former.map_or(0, |former| {
                let elapsed = (changed_at.saturating_sub(origin.instant), until_now(changed_at));
                let former = former.by_capacity(capacity);
                let mark = mark_of(&former.rule);
                limit.rule.left_of_former(&former.rule, mark, elapsed, reserved)
            })
        };
        match (row.age_of(origin.row), self.age(origin)) {
            (RowAge::Present, Age::Present) => {
                let elapsed = until_now(origin.instant);
                limit.rule.left(mark_of(&limit.rule), elapsed, reserved)
            }
            (RowAge::Present, Age::Former { rules, applied_at }) => {
                left_of(rules.of_row(row), limit.own_capacity(row), applied_at)
            }
            (
                RowAge::Former {
                    tier,
                    capacities_changed,
                },
                Age::Present,
            ) => {
                let capacity = match origin.capacity {
                    ReservedBy::Own(capacity) => capacity,
                    ReservedBy::Unknown if capacities_changed => return 0,
                    ReservedBy::Unknown => limit.own_capacity(row),
                };
                let changed_at = self.shard.changed_at(row);
                changed_at.map_or(0, |changed_at| {
                    // By the definition of the shard, whatever tier this is of.
                    let generation = self.shard.rules.generation;
                    let rules = self.shard.set.rules.find(|rules| rules.generation == generation);
                    rules.map_or(0, |rules| {
                        left_of(rules.of_tier(tier), capacity, changed_at.load(Ordering::Relaxed))
                    })
                })
            }
            (RowAge::Void, _) | (RowAge::Former { .. }, Age::Former { .. }) | (_, Age::Earlier) => 0,
        }
    }

    /// The instants tell definitions apart whose generations have the same lowest bits. Where there are no such bits, what
    /// was reserved at the very instant of a change counts as reserved before it, of which less is left.
    fn age(&self, origin: Origin) -> Age<'_> {
        let (instant, definition) = (origin.instant, origin.definition);
        let generation = self.shard.rules.generation;
        let Some(former) = generation.checked_sub(1) else {
            // Nothing has changed yet.
            return Age::Present;
        };
        let control = self.shard.memory.control();
        let applied_at = control.applied_at.load(Ordering::Relaxed);
        let is_of = |generation| definition.is_none_or(|bits| bits.is_of(generation));
        let comes_after = |change: u64| instant > change || (instant == change && definition.is_some());
        if is_of(generation) && comes_after(applied_at) {
            return Age::Present;
        }
        let former_applied_at = control.former_applied_at.load(Ordering::Relaxed);
        if !is_of(former) || instant > applied_at || (former > 0 && !comes_after(former_applied_at)) {
            return Age::Earlier;
        }
        match self.shard.set.rules.find(|rules| rules.generation == former) {
            Some(rules) => Age::Former { rules, applied_at },
            None => Age::Earlier,
        }
    }

    fn refund(
        &self,
        transaction: &mut Transaction<'_>,
        limit: &LimitRules,
        row: Row<'_>,
        amount: u64,
        left: u128,
        origin: Origin,
    ) -> u64 {
        if self.was_forgotten(limit, row, origin) {
            return 0;
        }
        limit.refund(row, transaction, self.now, amount, left)
    }

    /// Whether what was reserved counts no longer: by a reset of all rows (at zero there was none), or of this one, or with a
    /// row that is another by now.
    pub(in crate::engine) fn was_forgotten(&self, limit: &LimitRules, row: Row<'_>, origin: Origin) -> bool {
        let reset_at = self.shard.counters(limit.index).reset_at.load(Ordering::Relaxed);
        (origin.instant <= reset_at && reset_at > 0) || row.age_of(origin.row) == RowAge::Void
    }
}
