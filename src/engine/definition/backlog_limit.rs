//! Limits by the rule that most are by, with no more around it than a decision reads.

use std::sync::atomic::AtomicU64;

use super::limit_rules::LimitRules;
use super::own_capacities::LimitMask;
use crate::engine::shard::limit_state::StateWords;
use crate::limit::{Assessment, Backlog, Mark, NearThreshold, Now, Rule, RuleOperations};
use crate::shm::lock::journal::Transaction;

/// A [plain](LimitRules::is_plain) limit by GCRA, a token bucket or a leaky bucket.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct BacklogLimit {
    rule: Backlog,
    near: NearThreshold,
    /// Where its state begins, of the words of a row.
    first_word: usize,
}

impl BacklogLimit {
    fn of(limit: &LimitRules) -> Option<Self> {
        match limit.rule {
            Rule::Backlog(rule) if limit.is_plain() => Some(Self {
                rule,
                near: limit.near(),
                first_word: limit.first_word(),
            }),
            _ => None,
        }
    }

    /// As [`LimitRules::take`], from the states of a row.
    #[inline(always)]
    pub(in crate::engine) fn take(
        &self,
        states: &[AtomicU64],
        transaction: &mut Transaction<'_>,
        now: Now,
        cost: u64,
    ) -> Option<Mark> {
        let words: &[AtomicU64; 2] = states.get(self.first_word..)?.first_chunk()?;
        let state = &mut StateWords::changing(words, transaction);
        self.rule.take_if_admitted(state, now.within_proven_range(), cost)
    }

    /// What the limit says to a cost, and how it stands.
    #[inline(always)]
    pub(in crate::engine) fn assess(
        &self,
        states: &[AtomicU64],
        now: Now,
        cost: u64,
    ) -> Option<(Assessment, Mark)> {
        let words: &[AtomicU64; 2] = states.get(self.first_word..)?.first_chunk()?;
        let state = &StateWords::reading(words);
        Some(self.rule.assess_and_mark(state, now.within_proven_range(), cost))
    }

    /// As [`LimitRules::is_near`].
    #[inline(always)]
    pub(in crate::engine) fn is_near(&self, mark: Mark) -> bool {
        self.rule.is_near(mark, self.near)
    }
}

/// Those of a set, each in its place.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct BacklogLimits {
    limits: Vec<Option<BacklogLimit>>,
    mask: LimitMask,
}

impl BacklogLimits {
    pub(in crate::engine) fn of(limits: &[LimitRules]) -> Self {
        Self {
            limits: limits.iter().map(BacklogLimit::of).collect(),
            mask: LimitRules::mask(limits, |limit| BacklogLimit::of(limit).is_some()),
        }
    }

    /// Whether all that are asked for are among them.
    #[inline(always)]
    pub(in crate::engine) fn have_all(&self, asked: LimitMask) -> bool {
        asked.0 & !self.mask.0 == 0
    }

    #[inline(always)]
    pub(in crate::engine) fn get(&self, index: usize) -> Option<&BacklogLimit> {
        self.limits.get(index)?.as_ref()
    }
}
