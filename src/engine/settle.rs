//! What happens to a permit after it was admitted: settle and release.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::acquire::Taken;
use super::hold::HoldReference;
use super::plan::Kind;
use super::segment::{SegmentEngine, SetEngine};
use super::view::JournalledState;
use crate::error::Error;
use crate::shm::layout::MOST_LIMITS;

/// One limit of a settled permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledLimit {
    pub(crate) index: usize,
    /// Units given back.
    pub(crate) refunded: u64,
    /// Units charged above what was reserved.
    pub(crate) overdraft: u64,
}

/// Whether a release gave anything back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The hold was the permit's and is free now.
    GivenBack,
    /// The hold had been reclaimed before: nothing was changed.
    WasReclaimed,
}

impl SegmentEngine {
    /// Replaces what was reserved by what was used, all limits at once. `actual` names limits that `taken` has.
    pub(crate) fn settle(
        &self,
        set: &SetEngine,
        taken: &Taken,
        actual: &[(usize, u64)],
    ) -> Result<ArrayVec<SettledLimit, MOST_LIMITS>, Error> {
        let locked = self.lock(set)?;
        let view = &locked.view;
        let mut transaction = view.journal.begin();
        let mut outcome = ArrayVec::new();
        for (index, used) in actual {
            let Some(reserved) = taken.limits.iter().find(|limit| limit.index == *index) else {
                continue;
            };
            let (Some((rule, state)), Some(counters), Some(plan)) = (
                set.limit(view, *index),
                view.counters.get(*index),
                set.plan.limits.get(*index),
            ) else {
                continue;
            };
            let mut state = JournalledState {
                words: state.0,
                transaction: &mut transaction,
            };
            let mut settled = SettledLimit {
                index: *index,
                refunded: 0,
                overdraft: 0,
            };
            match used.checked_sub(reserved.cost) {
                Some(0) => {}
                Some(above) => {
                    rule.charge(&mut state, locked.now, above);
                    // A budget reserves nothing, so its debit is no overdraft.
                    if plan.kind == Kind::Budget {
                        transaction.add(&counters.taken, above);
                    } else {
                        settled.overdraft = above;
                        transaction.add(&counters.overdraft, above);
                    }
                }
                None => {
                    settled.refunded = rule.refund(&mut state, locked.now, reserved.cost - used);
                    transaction.add(&counters.refunded, settled.refunded);
                }
            }
            transaction.add(&counters.settled, 1);
            if plan.refund_on_death {
                // What was used is final: the death of the holder must not give it back any more.
                if let Some(hold) = taken.hold.filter(|hold| locked.owns(*hold, taken.owner)) {
                    let position = set.held_limits.iter().position(|limit| limit == index);
                    let amount = view
                        .hold(hold.index)
                        .and_then(|(_, amounts)| amounts.get(position?));
                    if let Some(amount) = amount {
                        transaction.store(amount, 0);
                    }
                }
            }
            if !outcome.is_full() {
                outcome.push(settled);
            }
        }
        transaction.add(&view.control.settled, 1);
        transaction
            .commit()
            .map_err(|overflow| set.internal_error(overflow))?;
        Ok(outcome)
    }

    /// Gives a hold back.
    pub(crate) fn release(
        &self,
        set: &SetEngine,
        hold: HoldReference,
        owner: u64,
    ) -> Result<Released, Error> {
        let locked = self.lock(set)?;
        if !locked.owns(hold, owner) {
            return Ok(Released::WasReclaimed);
        }
        let mut transaction = locked.view.journal.begin();
        locked.free_hold(&mut transaction, hold.index, false);
        transaction
            .commit()
            .map_err(|overflow| set.internal_error(overflow))?;
        Ok(Released::GivenBack)
    }

    /// Counts, without the lock, a permit that was dropped without a settle.
    pub(crate) fn count_unsettled(&self, set: &SetEngine, index: usize) {
        if let Some(counters) = self.view(set).ok().and_then(|view| view.counters.get(index)) {
            counters.unsettled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts, without the lock, a request that named a limit the set does not have.
    pub(crate) fn count_unknown_name(&self, set: &SetEngine) {
        if let Ok(view) = self.view(set) {
            view.control.unknown_names.fetch_add(1, Ordering::Relaxed);
        }
    }
}
