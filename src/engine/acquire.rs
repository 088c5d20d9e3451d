//! Taking several limits at once: all of them, or none.

use std::sync::atomic::AtomicU64;

use arrayvec::ArrayVec;

use super::hold::{FreeHold, HoldReference};
use super::memory::JournalledState;
use super::plan::Kind;
use super::recover::POISONED_BY_COUNTS;
use super::segment::{LockedSet, SegmentEngine, SetEngine};
use crate::error::Error;
use crate::limit::{Assessment, Mark};
use crate::shm::journal::Transaction;
use crate::shm::layout::MOST_LIMITS;

/// What a request takes of each limit of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) limits: LimitMask,
    pub(crate) amounts: [u64; MOST_LIMITS],
}

/// Some of the limits of a set: bit i is limit i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitMask(pub(crate) u64);

impl LimitMask {
    #[inline(always)]
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(index)
        })
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    #[inline]
    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

impl Costs {
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        // The mask never has a bit beyond the amounts; taking the remainder says so to the compiler.
        self.limits
            .iter()
            .map(|index| (index, self.amounts[index % MOST_LIMITS]))
    }
}

/// How one limit of a request was decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// How the limit stood just after the decision.
    pub(crate) mark: Mark,
    /// Of an admitted request, the cost. Of a refused one, the nanoseconds until the cost would fit: zero where it
    /// does, [`NEVER`] where time does not help.
    pub(crate) figure: u64,
}

/// A wait that time does not end.
pub(crate) const NEVER: u64 = u64::MAX;

/// How each limit of a request was decided. Filled in place, because moving it about would cost more than deciding.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    limits: LimitMask,
    decided: ArrayVec<Decided, MOST_LIMITS>,
}

impl Decisions {
    #[inline]
    pub(crate) fn none() -> Self {
        Self {
            limits: LimitMask(0),
            decided: ArrayVec::new_const(),
        }
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Decided)> {
        self.limits.iter().zip(&self.decided)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Decided> {
        self.iter()
            .find(|(limit, _)| *limit == index)
            .map(|(_, decided)| decided)
    }
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

/// Yes or no.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Admitted {
        owner: u64,
        hold: Option<HoldReference>,
    },
    Refused {
        reason: RefusalReason,
        /// The limit that bound; none where the table of holds was full.
        binding: Option<usize>,
        /// Nanoseconds, where time alone heals it.
        retry_after: Option<u64>,
    },
}

impl SegmentEngine {
    /// Takes everything that `costs` names, or nothing.
    #[inline]
    pub(crate) fn try_acquire(
        &self,
        set: &SetEngine,
        costs: &Costs,
        decisions: &mut Decisions,
    ) -> Result<Answer, Error> {
        set.refuse_the_impossible(costs)?;
        let owner = self.membership.owner()?;
        match self.decide(set, costs, owner, decisions)? {
            Answer::Refused {
                reason: RefusalReason::Concurrency | RefusalReason::TableFull,
                ..
            } if self.reclaim_if_due(set)? > 0 => {
                // Something was given back for the dead: that is what this request was waiting for.
                self.decide(set, costs, owner, decisions)
            }
            answer => Ok(answer),
        }
    }

    /// What `costs` would be told now. Takes and counts nothing.
    pub(crate) fn peek(&self, set: &SetEngine, costs: &Costs) -> Result<Decisions, Error> {
        let locked = self.lock(set)?;
        let mut decisions = Decisions::none();
        locked.assess_all(costs, &mut decisions);
        Ok(decisions)
    }

    #[inline]
    fn decide(
        &self,
        set: &SetEngine,
        costs: &Costs,
        owner: u64,
        decisions: &mut Decisions,
    ) -> Result<Answer, Error> {
        let locked = self.lock(set)?;
        let admissible = costs
            .iter()
            .all(|(index, cost)| locked.assess(index, cost) == Assessment::Admissible);
        if !admissible {
            return locked.refuse(costs, None, decisions);
        }
        if costs.limits.0 & set.held_mask == 0 {
            return locked.admit(costs, owner, None, decisions);
        }
        match self.find_free_hold(set)? {
            FreeHold::None => locked.refuse(costs, Some(RefusalReason::TableFull), decisions),
            free => locked.admit(costs, owner, Some(free), decisions),
        }
    }

    /// A free hold, counting the table again where its list of free holds is damaged.
    #[inline]
    fn find_free_hold(&self, set: &SetEngine) -> Result<FreeHold, Error> {
        match set.memory.find_free_hold() {
            FreeHold::Damaged => self.find_free_hold_after_recount(set),
            free => Ok(free),
        }
    }

    #[cold]
    fn find_free_hold_after_recount(&self, set: &SetEngine) -> Result<FreeHold, Error> {
        self.recount(set);
        match set.memory.find_free_hold() {
            FreeHold::Damaged => {
                let poisoned = &set.memory.control().poisoned;
                poisoned.store(POISONED_BY_COUNTS, std::sync::atomic::Ordering::Relaxed);
                Err(set.poisoned())
            }
            free => Ok(free),
        }
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
                return Err(self.never_admissible(index, cost, most));
            }
        }
        Ok(())
    }

    #[cold]
    fn never_admissible(&self, index: usize, cost: u64, most: u64) -> Error {
        Error::NeverAdmissible {
            set: self.plan.name.clone(),
            limit: self.limit_name(index),
            cost,
            most,
        }
    }
}

impl LockedSet<'_> {
    #[inline]
    fn assess(&self, index: usize, cost: u64) -> Assessment {
        match self.set.limit(index) {
            Some((rule, state)) => rule.assess(&state, self.now, cost),
            None => Assessment::Refused { retry_after: None },
        }
    }

    #[inline]
    fn mark(&self, index: usize) -> Mark {
        self.set
            .limit(index)
            .map_or_else(Mark::default, |(rule, state)| rule.mark(&state, self.now))
    }

    fn assess_all(&self, costs: &Costs, decisions: &mut Decisions) {
        decisions.limits = costs.limits;
        decisions.decided.clear();
        for (index, cost) in costs.iter() {
            let figure = match self.assess(index, cost) {
                Assessment::Admissible => 0,
                Assessment::Refused { retry_after } => retry_after.unwrap_or(NEVER),
            };
            decisions.decided.push(Decided {
                mark: self.mark(index),
                figure,
            });
        }
    }

    #[inline]
    fn admit(
        &self,
        costs: &Costs,
        owner: u64,
        free: Option<FreeHold>,
        decisions: &mut Decisions,
    ) -> Result<Answer, Error> {
        let memory = &self.set.memory;
        let mut transaction = memory.journal().begin();
        for (index, cost) in costs.iter() {
            let Some((rule, state)) = self.set.limit(index) else {
                continue;
            };
            let mut state = JournalledState {
                words: state.0,
                transaction: &mut transaction,
            };
            rule.charge(&mut state, self.now, cost);
            if let Some(counters) = memory.counters.get(index) {
                transaction.add(&counters.admitted, 1);
                transaction.add(&counters.taken, cost);
            }
        }
        let hold = match free {
            Some(free) => self.take_hold(&mut transaction, free, owner, costs),
            None => None,
        };
        transaction.add(&memory.control().admitted, 1);
        transaction
            .commit()
            .map_err(|overflow| self.set.internal_error(overflow))?;
        decisions.limits = costs.limits;
        decisions.decided.clear();
        for (index, cost) in costs.iter() {
            decisions.decided.push(Decided {
                mark: self.mark(index),
                figure: cost,
            });
        }
        Ok(Answer::Admitted { owner, hold })
    }

    /// Counts a refusal and works out what bound.
    fn refuse(
        &self,
        costs: &Costs,
        reason: Option<RefusalReason>,
        decisions: &mut Decisions,
    ) -> Result<Answer, Error> {
        self.assess_all(costs, decisions);
        // What only somebody else can heal binds before what time heals, and of the latter the longest. `NEVER` is
        // the longest of all; the first of equals stays.
        let binding = decisions
            .iter()
            .filter(|(_, decided)| decided.figure > 0)
            .map(|(index, decided)| (index, decided.figure))
            .reduce(|first, second| if second.1 > first.1 { second } else { first });
        let reason = reason.unwrap_or_else(|| match binding.map(|(index, _)| self.kind(index)) {
            Some(Kind::Concurrency) => RefusalReason::Concurrency,
            Some(Kind::Budget) => RefusalReason::Budget,
            _ => RefusalReason::Rate,
        });
        let mut transaction = self.set.memory.journal().begin();
        transaction.add(self.refusal_counter(reason), 1);
        for (index, decided) in decisions.iter() {
            if let (1.., Some(counters)) = (decided.figure, self.set.memory.counters.get(index)) {
                transaction.add(&counters.refused, 1);
            }
        }
        transaction
            .commit()
            .map_err(|overflow| self.set.internal_error(overflow))?;
        Ok(Answer::Refused {
            reason,
            binding: binding.map(|(index, _)| index),
            retry_after: binding.map(|(_, wait)| wait).filter(|wait| *wait != NEVER),
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
        let control = self.set.memory.control();
        match reason {
            RefusalReason::Rate => &control.refused_rate,
            RefusalReason::Concurrency => &control.refused_concurrency,
            RefusalReason::Budget => &control.refused_budget,
            RefusalReason::TableFull => &control.refused_table_full,
        }
    }

    /// Takes the free hold that was found, with an amount for each held limit, and notes the most held at once.
    fn take_hold(
        &self,
        transaction: &mut Transaction<'_>,
        free: FreeHold,
        owner: u64,
        costs: &Costs,
    ) -> Option<HoldReference> {
        let hold = self.fill_hold(transaction, free, owner, |limit| {
            if costs.limits.contains(limit) {
                costs.amounts[limit % MOST_LIMITS]
            } else {
                0
            }
        })?;
        for index in &self.set.held_limits {
            let (Some(in_use), Some(counters)) =
                (self.set.in_use_word(*index), self.set.memory.counters.get(*index))
            else {
                continue;
            };
            transaction.raise(
                &counters.high_water,
                in_use.load(std::sync::atomic::Ordering::Relaxed),
            );
        }
        Some(hold)
    }
}
