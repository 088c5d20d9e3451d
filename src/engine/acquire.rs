//! Taking several limits at once: all of them, or none.

use arrayvec::ArrayVec;
use std::sync::atomic::{AtomicU64, Ordering};

use super::hold::{FreeHold, HoldReference};
use super::plan::Kind;
use super::recover::POISONED_BY_COUNTS;
use super::segment::{LockedSet, SegmentEngine, SetEngine};
use super::view::JournalledState;
use crate::error::Error;
use crate::limit::{Assessment, Mark};
use crate::shm::layout::MOST_LIMITS;

/// What a request takes of each limit of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// Bit i says that limit i is taken.
    pub(crate) limits: u64,
    pub(crate) amounts: [u64; MOST_LIMITS],
}

impl Costs {
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let mut rest = self.limits;
        std::iter::from_fn(move || {
            let index = rest.trailing_zeros() as usize;
            let amount = *self.amounts.get(index)?;
            rest &= rest - 1;
            Some((index, amount))
        })
    }
}

/// One limit of an admitted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenLimit {
    pub(crate) index: usize,
    pub(crate) cost: u64,
    pub(crate) mark: Mark,
}

/// What an admitted request took.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) owner: u64,
    pub(crate) hold: Option<HoldReference>,
    pub(crate) limits: ArrayVec<TakenLimit, MOST_LIMITS>,
}

/// Why a limit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalReason {
    /// A rate or calls limit has too little left.
    Rate,
    /// Too much of a concurrency limit is held.
    Concurrency,
    /// The budget of the window is spent.
    Budget,
    /// Every hold of the set is taken, although the limits themselves would admit.
    TableFull,
}

/// One limit of a refused request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssessedLimit {
    pub(crate) index: usize,
    pub(crate) assessment: Assessment,
    pub(crate) mark: Mark,
}

/// What a refused request was told.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) reason: RefusalReason,
    /// The limit that bound; none where the table of holds was full.
    pub(crate) binding: Option<usize>,
    /// Nanoseconds, where time alone heals it.
    pub(crate) retry_after: Option<u64>,
    pub(crate) limits: ArrayVec<AssessedLimit, MOST_LIMITS>,
}

/// Yes or no.
// The larger variant is the one that the hot path returns.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Admitted(Taken),
    Refused(Refused),
}

impl SegmentEngine {
    /// Takes everything that `costs` names, or nothing.
    #[inline]
    pub(crate) fn try_acquire(&self, set: &SetEngine, costs: &Costs) -> Result<Decision, Error> {
        set.refuse_the_impossible(costs)?;
        let owner = self.membership.owner()?;
        match self.decide(set, costs, owner)? {
            Decision::Refused(refused)
                if matches!(
                    refused.reason,
                    RefusalReason::Concurrency | RefusalReason::TableFull
                ) && self.reclaim_if_due(set)? > 0 =>
            {
                // Something was given back for the dead: that is what this request was waiting for.
                self.decide(set, costs, owner)
            }
            decision => Ok(decision),
        }
    }

    /// What `costs` would be told now. Takes and counts nothing.
    pub(crate) fn peek(
        &self,
        set: &SetEngine,
        costs: &Costs,
    ) -> Result<ArrayVec<AssessedLimit, MOST_LIMITS>, Error> {
        let locked = self.lock(set)?;
        Ok(locked.assess_all(costs))
    }

    #[inline]
    fn decide(&self, set: &SetEngine, costs: &Costs, owner: u64) -> Result<Decision, Error> {
        let locked = self.lock(set)?;
        let admissible = costs
            .iter()
            .all(|(index, cost)| locked.assess(index, cost) == Assessment::Admissible);
        if !admissible {
            return locked.refuse(costs, None).map(Decision::Refused);
        }
        let needs_hold = set
            .held_limits
            .iter()
            .any(|index| costs.limits & (1 << index) != 0);
        if !needs_hold {
            return locked.admit(costs, owner, FreeHold::None);
        }
        match self.find_free_hold(set, &locked)? {
            FreeHold::None => locked
                .refuse(costs, Some(RefusalReason::TableFull))
                .map(Decision::Refused),
            free => locked.admit(costs, owner, free),
        }
    }

    /// A free hold, counting the table again where its list of free holds is damaged.
    #[inline]
    fn find_free_hold(&self, set: &SetEngine, locked: &LockedSet<'_>) -> Result<FreeHold, Error> {
        let mut free = locked.view.find_free_hold();
        if free == FreeHold::Damaged {
            self.recount(set, &locked.view);
            free = locked.view.find_free_hold();
        }
        if free == FreeHold::Damaged {
            locked
                .view
                .control
                .poisoned
                .store(POISONED_BY_COUNTS, Ordering::Relaxed);
            return Err(Error::Poisoned {
                set: set.plan.name.clone(),
            });
        }
        Ok(free)
    }
}

impl SetEngine {
    /// A cost above what a limit admits at once is an error before anything is taken.
    #[inline]
    fn refuse_the_impossible(&self, costs: &Costs) -> Result<(), Error> {
        for (index, cost) in costs.iter() {
            let most = self
                .plan
                .limits
                .get(index)
                .map_or(0, |limit| limit.rule.most_at_once());
            if cost > most {
                return Err(Error::NeverAdmissible {
                    set: self.plan.name.clone(),
                    limit: self.limit_name(index),
                    cost,
                    most,
                });
            }
        }
        Ok(())
    }
}

impl LockedSet<'_> {
    #[inline]
    fn assess(&self, index: usize, cost: u64) -> Assessment {
        match self.set.limit(&self.view, index) {
            Some((rule, state)) => rule.assess(&state, self.now, cost),
            None => Assessment::Refused { retry_after: None },
        }
    }

    #[inline]
    fn mark(&self, index: usize) -> Mark {
        self.set
            .limit(&self.view, index)
            .map_or_else(Mark::default, |(rule, state)| rule.mark(&state, self.now))
    }

    fn assess_all(&self, costs: &Costs) -> ArrayVec<AssessedLimit, MOST_LIMITS> {
        costs
            .iter()
            .map(|(index, cost)| AssessedLimit {
                index,
                assessment: self.assess(index, cost),
                mark: self.mark(index),
            })
            .collect()
    }

    #[inline]
    fn admit(&self, costs: &Costs, owner: u64, free: FreeHold) -> Result<Decision, Error> {
        let view = &self.view;
        let mut transaction = view.journal.begin();
        for (index, cost) in costs.iter() {
            let Some((rule, state)) = self.set.limit(view, index) else {
                continue;
            };
            rule.charge(
                &mut JournalledState {
                    words: state.0,
                    transaction: &mut transaction,
                },
                self.now,
                cost,
            );
            if let Some(counters) = view.counters.get(index) {
                transaction.add(&counters.admitted, 1);
                transaction.add(&counters.taken, cost);
            }
        }
        let hold = self.take_hold(&mut transaction, free, owner, |limit| {
            if costs.limits & (1 << limit) == 0 {
                0
            } else {
                costs.amounts.get(limit).copied().unwrap_or(0)
            }
        });
        if hold.is_some() {
            self.raise_high_water(&mut transaction);
        }
        transaction.add(&view.control.admitted, 1);
        transaction
            .commit()
            .map_err(|overflow| self.set.internal_error(overflow))?;
        let mut limits = ArrayVec::new();
        for (index, cost) in costs.iter() {
            limits.push(TakenLimit {
                index,
                cost,
                mark: self.mark(index),
            });
        }
        Ok(Decision::Admitted(Taken { owner, hold, limits }))
    }

    /// Notes the most that was held at once of each concurrency limit.
    fn raise_high_water(&self, transaction: &mut crate::shm::journal::Transaction<'_>) {
        for index in &self.set.held_limits {
            let is_concurrency = self
                .set
                .plan
                .limits
                .get(*index)
                .is_some_and(|limit| limit.kind == Kind::Concurrency);
            let (Some((_, state)), Some(counters)) =
                (self.set.limit(&self.view, *index), self.view.counters.get(*index))
            else {
                continue;
            };
            // The one word of a concurrency limit is what is in use.
            let in_use = state.0.first().map_or(0, |word| word.load(Ordering::Relaxed));
            if is_concurrency && in_use > counters.high_water.load(Ordering::Relaxed) {
                transaction.store(&counters.high_water, in_use);
            }
        }
    }

    /// Counts a refusal and works out what bound.
    #[cold]
    fn refuse(&self, costs: &Costs, reason: Option<RefusalReason>) -> Result<Refused, Error> {
        let limits = self.assess_all(costs);
        // What only somebody else can heal binds before what time heals, and of the latter the longest.
        let binding = limits
            .iter()
            .filter_map(|limit| match limit.assessment {
                Assessment::Admissible => None,
                Assessment::Refused { retry_after } => Some((limit.index, retry_after)),
            })
            .reduce(|first, second| match (first.1, second.1) {
                (None, _) => first,
                (_, None) => second,
                (Some(one), Some(other)) if other > one => second,
                _ => first,
            });
        let reason = reason.unwrap_or_else(|| match binding.map(|(index, _)| self.kind(index)) {
            Some(Kind::Concurrency) => RefusalReason::Concurrency,
            Some(Kind::Budget) => RefusalReason::Budget,
            _ => RefusalReason::Rate,
        });
        let mut transaction = self.view.journal.begin();
        transaction.add(self.refusal_counter(reason), 1);
        for limit in &limits {
            if let (Assessment::Refused { .. }, Some(counters)) =
                (limit.assessment, self.view.counters.get(limit.index))
            {
                transaction.add(&counters.refused, 1);
            }
        }
        transaction
            .commit()
            .map_err(|overflow| self.set.internal_error(overflow))?;
        Ok(Refused {
            reason,
            binding: binding.map(|(index, _)| index),
            retry_after: binding.and_then(|(_, retry_after)| retry_after),
            limits,
        })
    }

    fn kind(&self, index: usize) -> Kind {
        self.set
            .plan
            .limits
            .get(index)
            .map_or(Kind::Rate, |limit| limit.kind)
    }

    fn refusal_counter(&self, reason: RefusalReason) -> &AtomicU64 {
        let control = self.view.control;
        match reason {
            RefusalReason::Rate => &control.refused_rate,
            RefusalReason::Concurrency => &control.refused_concurrency,
            RefusalReason::Budget => &control.refused_budget,
            RefusalReason::TableFull => &control.refused_table_full,
        }
    }
}
