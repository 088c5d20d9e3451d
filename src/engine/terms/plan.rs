//! The rules by which a set decides: the compiled form of its declaration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::choices::{Kind, Scope, WhenFull};
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

/// Which networks a limit counts if keys are addresses: how many leading bits matter.
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
    /// Depends on what remains of the limit, and on how many processes have batches of it.
    Auto,
}

/// With automatic sizes, all batches of a limit together are at most one part in this many of what remains, while the
/// number of processes does not change.
const AUTO_SHARE: u64 = 16;

impl BatchSize {
    /// Whether a request of this cost may be admitted from a batch.
    #[inline]
    pub(crate) fn is_for(self, cost: u64) -> bool {
        let batch = match self {
            Self::Fixed(units) => units,
            Self::Auto => MAX_BATCH,
        };
        (1..batch).contains(&cost)
    }

    /// How many units to draw if `remaining` are left of the limit and `processes`, this one included, have batches.
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

    /// The most that can be left of a batch of `drawn` units, once the request it was drawn for has taken its own.
    #[inline]
    pub(crate) fn max_left(self, drawn: u64) -> u64 {
        match self {
            Self::Fixed(units) => drawn.min(units.saturating_sub(1)),
            Self::Auto => drawn.saturating_sub(1),
        }
    }

    /// The most that each process can have left over, of a limit that admits `burst` at once.
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
    /// Whether a batch ends with its window. Only for fixed windows.
    pub(crate) window_coupled: bool,
}

/// One limit of a set.
#[derive(Clone, Debug)]
pub(crate) struct LimitPlan {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The size of a unit as it was declared, for readers.
    pub(crate) unit: String,
    /// Whether each key has it for itself, or all keys have it together.
    pub(crate) scope: Scope,
    pub(crate) rule: Rule,
    /// How long its window is, or can be at most, in nanoseconds; zero if it has none.
    pub(crate) window: u64,
    /// How another capacity for a key changes the rule; `None` if the capacity adapts, is no bound, or belongs to an
    /// overall limit.
    pub(crate) terms: Option<CapacityTerms>,
    /// Whether what was charged and not used is refunded.
    pub(crate) refunds: bool,
    /// How long a hold lasts without being renewed, in nanoseconds.
    pub(crate) lease: Option<u64>,
    /// Whether it decides and counts, but never refuses.
    pub(crate) shadow: bool,
    /// From which percentage of its capacity an admission counts as near the limit: 1 to 100.
    pub(crate) near_percent: u8,
    /// Only in keyed sets, and then for all of their limits or for none.
    pub(crate) prefix: Option<PrefixLengths>,
    /// Only for a limit that is alone in its set.
    pub(crate) credit: Option<CreditPlan>,
    /// Whether there is room for a lease, even if hosts do not share the limit now.
    pub(crate) has_lease_room: bool,
    /// The key in the store under which hosts share the limit, if they do.
    pub(crate) fleet_key: Option<Arc<str>>,
}

impl LimitPlan {
    /// How many words of state the limit has in a row.
    pub(crate) fn state_words(&self) -> usize {
        let words = self.rule.state_words();
        match self.rule {
            Rule::Leased(_) => words,
            _ if self.has_lease_room => words + LEASE_WORDS,
            _ => words,
        }
    }
}

/// The most words of a row that a key's change of tier may rewrite. A change of its own capacities rewrites fewer.
pub(crate) const MAX_MIGRATED_WORDS: usize = 158;

/// The most words of a limit's state that a change of capacity rewrites.
pub(crate) const MAX_WORDS_BY_CAPACITY: usize = 4;

/// Of the words that one transaction may change, those reserved for all that a set's limits give back at once. The
/// others are for the hold, the ticket and the queue.
const REFUND_WORDS: usize = 128;

/// The most words that a limit stores when it is charged or gives something back, except for sliding windows.
const WORDS_OF_A_CHARGE: usize = 5;

const _: () = assert!(REFUND_WORDS + 32 <= JOURNAL_ENTRIES && WORDS_OF_A_CHARGE * MAX_LIMITS < REFUND_WORDS);

/// Tells each sliding window of a set how many words it may store to give something back, so that all limits of the set
/// fit into one transaction.
pub(crate) fn share_refund_words(limits: &mut [LimitPlan]) {
    let logs = limits
        .iter()
        .filter(|limit| matches!(limit.rule, Rule::SlidingWindow(_)))
        .count();
    let words = REFUND_WORDS.saturating_sub(WORDS_OF_A_CHARGE * (limits.len() - logs));
    for limit in limits {
        if let Rule::SlidingWindow(rule) = limit.rule {
            // `logs` counts this one, so it is not zero.
            limit.rule = rule.refunding_within((words / logs.max(1)) as u32).into();
        }
    }
}

/// The limits of the keys in a tier.
#[derive(Clone, Debug)]
pub(crate) struct TierPlan {
    pub(crate) name: String,
    /// The share that each of its keys has of what all keys have together.
    pub(crate) weight: u64,
    /// One for each limit of the set, in declaration order. Only the rules differ from the set's.
    pub(crate) limits: Vec<LimitPlan>,
}

/// One set: its limits in declaration order.
#[derive(Clone, Debug)]
pub(crate) struct SetPlan {
    pub(crate) name: String,
    pub(crate) limits: Vec<LimitPlan>,
    /// In a keyed set, in declaration order. `default` is left out: its limits are those above.
    pub(crate) tiers: Vec<TierPlan>,
    pub(crate) metadata: Arc<BTreeMap<String, String>>,
    /// Present if every key has a state of its own.
    pub(crate) keyed: Option<KeyedPlan>,
    /// How many permits with something to give back may be out at once, per shard of a keyed set; zero if no limit
    /// gives back.
    pub(crate) hold_capacity: u32,
    /// Whether each hold keeps the label of its request.
    pub(crate) labels: bool,
    /// How long a grant is kept for its owner while others wait, in nanoseconds.
    pub(crate) collect_within: u64,
    /// How many requests may wait at once, per shard of a keyed set.
    pub(crate) waiters: u32,
    /// The version of the declaration it was compiled from, if that has one.
    pub(crate) version: Option<u64>,
    /// Whether an operator has edited the declaration.
    pub(crate) is_edited: bool,
}
