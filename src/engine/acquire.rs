//! Taking several limits at once: all of them, or none.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::hold::{FreeHold, HoldReference};
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

/// Limits whose decisions a permit or refusal carries within itself. Room for all sixteen would make every move of
/// a permit cost more than deciding does, so the decisions on more limits than this are on the heap.
const DECIDED_INLINE: usize = 4;

/// How each limit of a request was decided.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    limits: LimitMask,
    decided: SmallVec<[Decided; DECIDED_INLINE]>,
}

impl Decisions {
    /// Has the room for what is to be decided, because nothing is allocated under a lock.
    #[inline]
    pub(crate) fn with_room_for(costs: &Costs) -> Self {
        let count = costs.limits.0.count_ones() as usize;
        let decided = if count > DECIDED_INLINE {
            SmallVec::with_capacity(count)
        } else {
            SmallVec::new()
        };
        Self {
            limits: costs.limits,
            decided,
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
    ) -> Result<Answer, Box<Error>> {
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
    pub(crate) fn peek(&self, set: &SetEngine, costs: &Costs) -> Result<Decisions, Box<Error>> {
        let mut decisions = Decisions::with_room_for(costs);
        self.lock(set)?.assess_all(costs, &mut decisions);
        Ok(decisions)
    }

    #[inline]
    fn decide(
        &self,
        set: &SetEngine,
        costs: &Costs,
        owner: u64,
        decisions: &mut Decisions,
    ) -> Result<Answer, Box<Error>> {
        let locked = self.lock(set)?;
        for (index, cost) in costs.iter() {
            let assessment = set.limits.get(index).map(|limit| limit.assess(locked.now, cost));
            if assessment != Some(Assessment::Admissible) {
                return locked.refuse(costs, None, decisions);
            }
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
    fn find_free_hold(&self, set: &SetEngine) -> Result<FreeHold, Box<Error>> {
        match set.memory.find_free_hold() {
            FreeHold::Damaged => self.find_free_hold_after_recount(set),
            free => Ok(free),
        }
    }

    #[cold]
    fn find_free_hold_after_recount(&self, set: &SetEngine) -> Result<FreeHold, Box<Error>> {
        self.recount(set);
        match set.memory.find_free_hold() {
            FreeHold::Damaged => {
                let poisoned = &set.memory.control().poisoned;
                poisoned.store(POISONED_BY_COUNTS, Ordering::Relaxed);
                Err(set.poisoned())
            }
            free => Ok(free),
        }
    }
}

impl SetEngine {
    /// A cost above what a limit admits at once is an error before anything is taken.
    #[inline]
    fn refuse_the_impossible(&self, costs: &Costs) -> Result<(), Box<Error>> {
        for (index, cost) in costs.iter() {
            let most = self.limits.get(index).map_or(0, |limit| limit.most_at_once);
            if cost > most {
                return Err(self.never_admissible(index, cost, most));
            }
        }
        Ok(())
    }

    #[cold]
    fn never_admissible(&self, index: usize, cost: u64, most: u64) -> Box<Error> {
        Box::new(Error::NeverAdmissible {
            set: self.plan.name.clone(),
            limit: self.limit_name(index),
            cost,
            most,
        })
    }
}

impl LockedSet<'_> {
    fn assess_all(&self, costs: &Costs, decisions: &mut Decisions) {
        decisions.decided.clear();
        for (index, cost) in costs.iter() {
            let Some(limit) = self.set.limits.get(index) else {
                continue;
            };
            let figure = match limit.assess(self.now, cost) {
                Assessment::Admissible => 0,
                Assessment::Refused { retry_after } => retry_after.unwrap_or(NEVER),
            };
            decisions.decided.push(Decided {
                mark: limit.mark(self.now),
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
    ) -> Result<Answer, Box<Error>> {
        let mut transaction = self.set.memory.journal().begin();
        decisions.decided.clear();
        for (index, cost) in costs.iter() {
            let Some(limit) = self.set.limits.get(index) else {
                continue;
            };
            limit.charge(&mut transaction, self.now, cost);
            transaction.add(&limit.counters().admitted, 1);
            transaction.add(&limit.counters().taken, cost);
            decisions.decided.push(Decided {
                mark: limit.mark(self.now),
                figure: cost,
            });
        }
        let hold = match free {
            Some(free) => self.take_hold(&mut transaction, free, owner, costs),
            None => None,
        };
        transaction.add(&self.set.memory.control().admitted, 1);
        match transaction.commit() {
            Ok(()) => Ok(Answer::Admitted { owner, hold }),
            Err(overflow) => Err(self.set.internal_error(overflow)),
        }
    }

    /// Counts a refusal and works out what bound.
    fn refuse(
        &self,
        costs: &Costs,
        reason: Option<RefusalReason>,
        decisions: &mut Decisions,
    ) -> Result<Answer, Box<Error>> {
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
            if let (1.., Some(limit)) = (decided.figure, self.set.limits.get(index)) {
                transaction.add(&limit.counters().refused, 1);
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
        self.set.limits.get(index).map_or(Kind::Rate, |limit| limit.kind)
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
        for limit in self.set.held_limits() {
            if let Some(in_use) = limit.in_use() {
                transaction.raise(&limit.counters().high_water, in_use.load(Ordering::Relaxed));
            }
        }
        Some(hold)
    }
}
