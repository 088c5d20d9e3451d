//! What a set decides by: the compiled form of its declaration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::choices::{Kind, WhenFull};
use crate::limit::{CapacityTerms, LEASE_WORDS, Rule, RuleOperations};
use crate::shm::layout::records::{JOURNAL_ENTRIES, MAX_LIMITS};

/// The table of a keyed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyedPlan {
    pub(crate) max_keys: u64,
    pub(crate) when_full: WhenFull,
    /// Whether the first bytes of a key are kept for people to read.
    pub(crate) store_keys: bool,
    /// Whether a key can have capacities of its own.
    pub(crate) overrides: bool,
}

/// Which networks a limit counts where the key is an address: how many leading bits of it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefixLengths {
    /// At most 32.
    pub(crate) ipv4: u8,
    /// At most 128.
    pub(crate) ipv6: u8,
}

/// The most units of a batch of credit.
pub(crate) const MAX_BATCH: u64 = (1 << 20) - 1;

/// How many units a process draws at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BatchSize {
    /// From 1 to [`MAX_BATCH`].
    Fixed(u64),
    /// By what remains of the limit, and how many processes have batches of it.
    Auto,
}

/// All batches of a limit whose batches are sized automatically are at most this part of what remains, where the number of
/// processes does not change.
const AUTO_SHARE: u64 = 16;

impl BatchSize {
    /// Whether a request of that cost may be admitted from a batch.
    #[inline]
    pub(crate) fn is_for(self, cost: u64) -> bool {
        let batch = match self {
            Self::Fixed(units) => units,
            Self::Auto => MAX_BATCH,
        };
        (1..batch).contains(&cost)
    }

    /// How many units to draw where so much remains and so many processes, this one included, have batches.
    #[inline]
    pub(crate) fn units(self, remaining: u64, processes: u64) -> u64 {
        match self {
            Self::Fixed(units) => units.min(remaining),
            Self::Auto => {
                let share = remaining / AUTO_SHARE.saturating_mul(processes.max(1));
                share.min(MAX_BATCH)
            }
        }
    }

    /// How much of a batch of `drawn` units is left at most, once the request for which it was drawn has its own.
    #[inline]
    pub(crate) fn max_left(self, drawn: u64) -> u64 {
        match self {
            Self::Fixed(units) => drawn.min(units.saturating_sub(1)),
            Self::Auto => drawn.saturating_sub(1),
        }
    }

    /// How much each process may have left of a limit that admits so much at once.
    pub(crate) fn max_left_of(self, burst: u64) -> u64 {
        match self {
            Self::Fixed(units) => units.saturating_sub(1),
            Self::Auto => self.max_left(self.units(burst, 1)),
        }
    }
}

/// How processes draw units of a limit in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CreditPlan {
    pub(crate) batch: BatchSize,
    /// Whether a batch ends with its window. For fixed windows only.
    pub(crate) window_coupled: bool,
}

/// One limit of a set.
#[derive(Clone, Debug)]
pub(crate) struct LimitPlan {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) rule: Rule,
    /// What another capacity of a key means for the rule; none where the capacity moves by itself or is no bound.
    pub(crate) terms: Option<CapacityTerms>,
    /// Whether what was charged and not used is given back.
    pub(crate) refunds: bool,
    /// For how long a hold lasts that is not renewed, in nanoseconds.
    pub(crate) lease: Option<u64>,
    /// Whether it decides and counts, and never refuses.
    pub(crate) shadow: bool,
    /// From which percentage of its capacity on an admission counts as near the limit: 1 to 100.
    pub(crate) near_percent: u8,
    /// For limits of a keyed set: all of a set's limits have one, or none.
    pub(crate) prefix: Option<PrefixLengths>,
    /// For the only limit of its set.
    pub(crate) credit: Option<CreditPlan>,
    /// Whether there is room for a lease, whether or not hosts share the limit now.
    pub(crate) has_lease_room: bool,
    /// Under which key of the store hosts share the limit, where they do.
    pub(crate) fleet_key: Option<Arc<str>>,
}

impl LimitPlan {
    /// The words of state of the limit in a row.
    pub(crate) fn state_words(&self) -> usize {
        let words = self.rule.state_words();
        match self.rule {
            Rule::Leased(_) => words,
            _ if self.has_lease_room => words + LEASE_WORDS,
            _ => words,
        }
    }
}

/// The most words of a row that a key's change of tier, and of capacities of its own with it, may rewrite: its states and
/// those capacities.
pub(crate) const MAX_MIGRATED_WORDS: usize = 158;

/// The most words of state that another capacity of a limit rewrites.
pub(crate) const MAX_WORDS_BY_CAPACITY: usize = 4;

/// Of the words that one transaction may change, those for what a set's limits give back all at once. The others are for
/// the hold, the ticket and the queue.
const REFUND_WORDS: usize = 128;

/// The most words that a limit stores when it is charged or gives something back, a sliding window aside.
const WORDS_OF_A_CHARGE: usize = 4;

const _: () = assert!(REFUND_WORDS + 32 <= JOURNAL_ENTRIES && WORDS_OF_A_CHARGE * MAX_LIMITS < REFUND_WORDS);

/// Says to each sliding window of a set how many words it may store to give something back, so that all limits of the set
/// can do so in one transaction.
pub(crate) fn share_refund_words(limits: &mut [LimitPlan]) {
    let logs = limits
        .iter()
        .filter(|limit| matches!(limit.rule, Rule::SlidingWindow(_)))
        .count();
    let words = REFUND_WORDS.saturating_sub(WORDS_OF_A_CHARGE * (limits.len() - logs));
    for limit in limits {
        if let Rule::SlidingWindow(rule) = limit.rule {
            // As many as there are of them: not none.
            limit.rule = rule.refunding_within((words / logs.max(1)) as u32).into();
        }
    }
}

/// What keys of a tier are limited by.
#[derive(Clone, Debug)]
pub(crate) struct TierPlan {
    pub(crate) name: String,
    /// As many as the set has, in declaration order. Only rules differ from those of the set.
    pub(crate) limits: Vec<LimitPlan>,
}

/// One set: its limits in declaration order.
#[derive(Clone, Debug)]
pub(crate) struct SetPlan {
    pub(crate) name: String,
    pub(crate) limits: Vec<LimitPlan>,
    /// Of a keyed set, in declaration order, and without the one that the limits themselves are.
    pub(crate) tiers: Vec<TierPlan>,
    pub(crate) metadata: Arc<BTreeMap<String, String>>,
    /// Where every key has a state of its own.
    pub(crate) keyed: Option<KeyedPlan>,
    /// How many permits with something to give back may be out at once, in each shard of a keyed set; zero where no
    /// limit gives back.
    pub(crate) hold_capacity: u32,
    /// Whether each hold says what its request was labelled with.
    pub(crate) labels: bool,
    /// For how long a grant is kept for its owner while others wait, in nanoseconds.
    pub(crate) collect_within: u64,
    /// How many requests may wait at once, in each shard of a keyed set.
    pub(crate) waiters: u32,
    /// The version of the declaration that it comes from, if that has one.
    pub(crate) version: Option<u64>,
    /// Whether an operator has made it what it is.
    pub(crate) is_edited: bool,
}
