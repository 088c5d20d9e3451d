//! Limits that follow the most common rule, reduced to what a decision reads of them.

use std::sync::atomic::AtomicU64;

use crate::engine::rules::limit_rules::LimitRules;
use crate::engine::rules::limit_state::StateWords;
use crate::engine::terms::own_capacities::LimitMask;
use crate::limit::{Assessment, Backlog, Mark, NearThreshold, Now, Rule, RuleOperations};
use crate::shm::layout::records::MAX_LIMITS;
use crate::shm::lock::journal::Transaction;

/// A [plain](LimitRules::is_plain) GCRA, token bucket or leaky bucket limit that a row has for itself. Nothing of it is held.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct BacklogLimit {
    rule: Backlog,
    near: NearThreshold,
    /// The index of its first word in a row's state.
    first_word: usize,
}

impl BacklogLimit {
    fn of(limit: &LimitRules) -> Option<Self> {
        match limit.rule {
            Rule::Backlog(rule) if limit.is_plain() && !limit.is_overall() => Some(Self {
                rule,
                near: limit.near(),
                first_word: limit.first_word(),
            }),
            _ => None,
        }
    }

    /// The two words of `states` that are its state.
    #[inline(always)]
    pub(in crate::engine) fn words<'a>(&self, states: &'a [AtomicU64]) -> Option<&'a [AtomicU64; 2]> {
        let (_, words) = states.split_at_checked(self.first_word)?;
        words.first_chunk()
    }

    /// Takes the cost if the limit admits it, and returns how the limit then stands: [`LimitRules::take`] on the states
    /// of a row.
    #[inline(always)]
    pub(in crate::engine) fn take(
        &self,
        states: &[AtomicU64],
        transaction: &mut Transaction<'_>,
        now: Now,
        cost: u64,
    ) -> Option<Mark> {
        let state = &mut StateWords::changing(self.words(states)?, transaction);
        self.rule.take_if_admitted(state, now.within_proven_range(), cost)
    }

    /// How the limit stands once `cost` is charged, if it admits that.
    #[inline(always)]
    pub(in crate::engine) fn mark_if_admitted(
        &self,
        words: &[AtomicU64; 2],
        now: Now,
        cost: u64,
    ) -> Option<Mark> {
        let state = &StateWords::reading(words);
        self.rule.mark_if_admitted(state, now.within_proven_range(), cost)
    }

    /// The state of a limit that stands at `mark` after an admission.
    #[inline(always)]
    pub(in crate::engine) fn state_at(&self, now: Now, mark: Mark) -> [u64; 2] {
        self.rule.state_at(now.within_proven_range(), mark)
    }

    /// The limit's answer to `cost`, and how it stands.
    #[inline(always)]
    pub(in crate::engine) fn assess(
        &self,
        states: &[AtomicU64],
        now: Now,
        cost: u64,
    ) -> Option<(Assessment, Mark)> {
        let state = &StateWords::reading(self.words(states)?);
        Some(self.rule.assess_and_mark(state, now.within_proven_range(), cost))
    }

    /// See [`LimitRules::is_near`].
    #[inline(always)]
    pub(in crate::engine) fn is_near(&self, mark: Mark) -> bool {
        self.rule.is_near(mark, self.near)
    }
}

/// The backlog limits of a set, each at its position.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct BacklogLimits {
    /// One place for each limit a set can have, so that nothing needs to know how many it has.
    limits: Box<[Option<BacklogLimit>; MAX_LIMITS]>,
    mask: LimitMask,
}

impl BacklogLimits {
    pub(in crate::engine) fn of(limits: &[LimitRules]) -> Self {
        let mut backlogs = Self::default();
        for (place, limit) in backlogs.limits.iter_mut().zip(limits) {
            *place = BacklogLimit::of(limit);
        }
        let is_backlog = |index: &usize| backlogs.limits[*index].is_some();
        backlogs.mask = LimitMask::of((0..MAX_LIMITS).filter(is_backlog));
        backlogs
    }

    /// Whether all of `asked` are among them.
    #[inline(always)]
    pub(in crate::engine) fn have_all(&self, asked: LimitMask) -> bool {
        asked.0 & !self.mask.0 == 0
    }

    #[inline(always)]
    pub(in crate::engine) fn get(&self, index: usize) -> Option<&BacklogLimit> {
        self.limits[index % MAX_LIMITS].as_ref()
    }
}
