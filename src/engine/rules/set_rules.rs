//! The rules by which a set decides, ready to be applied to its rows.

use crate::choices::{Kind, Scope};
use crate::engine::rules::backlog_limit::BacklogLimits;
use crate::engine::rules::limit_rules::{LimitPlace, LimitRules};
use crate::engine::terms::definition_bits::TierIndex;
use crate::engine::terms::key_identity::NAME_WORDS;
use crate::engine::terms::own_capacities::LimitMask;
use crate::engine::terms::plan::{LimitPlan, PrefixLengths, SetPlan};
use crate::limit::{Rule, RuleOperations};
use crate::order::{MAX_COST, PER_NANO, Served};
use crate::shm::layout::geometry::SetShape;
use crate::sorting::sort_by;
use crate::table;
use crate::units::saturate;

/// The limits of a set under one of its definitions.
#[derive(Debug)]
pub(crate) struct SetRules {
    /// The generation of that definition.
    pub(crate) generation: u64,
    /// The tier of the definition that these limits are for.
    pub(in crate::engine) tier: TierIndex,
    /// The share that each of the tier's keys has of what all keys have together.
    pub(crate) weight: u64,
    pub(crate) plan: SetPlan,
    pub(crate) limits: Vec<LimitRules>,
    /// The [plain](LimitRules::is_plain) limits; none if keys can have other limits than these.
    pub(in crate::engine) plain: LimitMask,
    /// The limits that hosts share.
    pub(in crate::engine) leased: LimitMask,
    /// The plain limits with the most common rule.
    pub(in crate::engine) backlogs: BacklogLimits,
    /// The index of the limit that each word of a hold's amounts belongs to.
    pub(crate) held_indexes: Vec<usize>,
    /// What a unit of each overall limit weighs when keys are compared: how long it takes to replenish one. Zero for
    /// limits that each key has for itself, for what is held, and for what keeps nobody waiting.
    times_per_unit: Vec<Served>,
    /// The limits in shadow, as a bit mask.
    pub(in crate::engine) shadow_mask: u32,
    /// Whether holds can expire, or be taken back because their places are no longer leased.
    pub(crate) has_leases: bool,
    /// Whether keys can have other limits than these.
    pub(in crate::engine) differs_by_key: bool,
    /// The rules for keys of the other tiers, in the order of the definition.
    pub(in crate::engine) tiers: Vec<SetRules>,
}

impl LimitPlan {
    /// See [`SetRules::times_per_unit`].
    fn time_per_unit(&self) -> Served {
        let is_waited_for = !self.shadow && !matches!(self.rule, Rule::Unlimited(_));
        if self.scope == Scope::Key || self.window == 0 || !is_waited_for {
            return 0;
        }
        let of_all = u128::from(self.window) * u128::from(PER_NANO);
        saturate(of_all / u128::from(self.rule.capacity().max(1))).clamp(1, MAX_COST)
    }
}

impl SetPlan {
    /// The index of the limit that each word of a hold's amounts belongs to: the limits that give back when the holder
    /// is gone.
    pub(crate) fn held_limits(&self) -> Vec<usize> {
        (0..self.limits.len())
            .filter(|index| {
                let limit = &self.limits[*index];
                limit.kind == Kind::Concurrency || limit.credit.is_some()
            })
            .collect()
    }

    /// The most permits of one unit each that the set's concurrency limits allow at once: for one key if the set is
    /// keyed, and in whichever tier allows most. Unlimited ones do not count.
    pub(crate) fn max_held(&self) -> u64 {
        let held = |limits: &[LimitPlan]| {
            limits
                .iter()
                .filter(|limit| limit.kind == Kind::Concurrency)
                .map(|limit| limit.rule.burst())
                .filter(|max| *max < u64::MAX)
                .fold(0, u64::saturating_add)
        };
        let of_tiers = self.tiers.iter().map(|tier| held(&tier.limits));
        of_tiers.fold(held(&self.limits), u64::max)
    }

    /// Whether keys can have other limits than the declared ones, through tiers or capacities of their own.
    pub(in crate::engine) fn differs_by_key(&self) -> bool {
        !self.tiers.is_empty() || self.has_overrides()
    }

    /// Whether keys can have capacities of their own.
    fn has_overrides(&self) -> bool {
        self.keyed.is_some_and(|keyed| keyed.overrides)
    }

    /// Words of the states of all limits with this scope.
    fn words_of(&self, scope: Scope) -> usize {
        let limits = self.limits.iter().filter(|limit| limit.scope == scope);
        limits.map(LimitPlan::state_words).sum()
    }

    /// Whether all keys have some limit together.
    pub(crate) fn has_overall(&self) -> bool {
        self.limits.iter().any(|limit| limit.scope == Scope::AllKeys)
    }

    /// Where a row holds its key's own capacities: after the words of the limits, in their order, one word for each
    /// limit that can have one.
    fn override_words(&self) -> impl Iterator<Item = Option<usize>> {
        let mut next = self.words_of(Scope::Key);
        let has_overrides = self.has_overrides();
        self.limits.iter().map(move |limit| {
            let word = (has_overrides && limit.terms.is_some()).then_some(next)?;
            next += 1;
            Some(word)
        })
    }

    /// The prefix lengths whose networks the limits count, the shortest first.
    pub(in crate::engine) fn levels(&self) -> Vec<PrefixLengths> {
        let mut levels: Vec<PrefixLengths> = self.limits.iter().filter_map(|limit| limit.prefix).collect();
        sort_by(&mut levels, |one, other| {
            (one.ipv4, one.ipv6) < (other.ipv4, other.ipv6)
        });
        levels.dedup();
        levels
    }

    /// The room the set needs in a segment, with `definition_room` bytes for each definition text.
    pub(crate) fn shape(&self, definition_room: u64) -> SetShape {
        let (shards, buckets, name_words) = match self.keyed {
            None => (1, 0, 0),
            Some(keyed) => {
                // One lock and one journal guard a key's row and what all keys have together.
                let shards = if self.has_overall() {
                    1
                } else {
                    table::shards_for(keyed.max_keys)
                };
                let name_words = if keyed.store_keys { NAME_WORDS } else { 0 };
                (shards, table::buckets_for(keyed.max_keys, shards), name_words)
            }
        };
        SetShape {
            definition_room,
            limits: self.limits.len() as u64,
            state_words: (self.words_of(Scope::Key) + self.override_words().flatten().count()) as u64,
            holds: u64::from(self.hold_capacity),
            held_amounts: self.held_limits().len() as u64,
            labels: if self.labels {
                u64::from(self.hold_capacity)
            } else {
                0
            },
            tickets: u64::from(self.waiters),
            shards,
            buckets,
            name_words,
            lease_lists: u64::from(buckets > 0 && self.limits.iter().any(|limit| limit.has_lease_room)),
            overall_words: self.words_of(Scope::AllKeys) as u64,
        }
    }
}

impl SetRules {
    pub(crate) fn new(generation: u64, plan: SetPlan) -> Self {
        let tiers = (1..).zip(&plan.tiers).map(|(index, tier)| {
            let plan = SetPlan {
                limits: tier.limits.clone(),
                tiers: Vec::new(),
                ..plan.clone()
            };
            Self {
                tier: TierIndex(index),
                weight: tier.weight,
                ..Self::new(generation, plan)
            }
        });
        let tiers = tiers.collect();
        let levels = plan.levels();
        // The states of either scope follow one another.
        let (mut own, mut overall) = (0, 0);
        let mut limits = Vec::with_capacity(plan.limits.len());
        for ((index, limit), override_word) in plan.limits.iter().enumerate().zip(plan.override_words()) {
            let level = levels.iter().position(|lengths| Some(*lengths) == limit.prefix);
            let first_word = match limit.scope {
                Scope::Key => &mut own,
                Scope::AllKeys => &mut overall,
            };
            let place = LimitPlace {
                index,
                level: level.unwrap_or(0),
                first_word: *first_word,
                override_word,
            };
            limits.push(LimitRules::new(limit, place));
            *first_word += limit.state_words();
        }
        let held_indexes = plan.held_limits();
        let (plain, backlogs) = if plan.differs_by_key() {
            Default::default()
        } else {
            let plain = limits.iter().filter(|limit| limit.is_plain());
            let plain = LimitMask::of(plain.map(|limit| limit.index));
            (plain, BacklogLimits::of(&limits))
        };
        Self {
            generation,
            tier: TierIndex::default(),
            weight: 1,
            differs_by_key: plan.differs_by_key(),
            tiers,
            held_indexes,
            times_per_unit: plan.limits.iter().map(LimitPlan::time_per_unit).collect(),
            shadow_mask: limits
                .iter()
                .filter(|limit| limit.shadow)
                .fold(0, |mask, limit| mask | 1 << limit.index),
            has_leases: limits
                .iter()
                .any(|limit| limit.lease.is_some() || (limit.is_leased() && limit.kind == Kind::Concurrency)),
            plain,
            leased: LimitMask::of(
                limits
                    .iter()
                    .filter(|limit| limit.is_leased())
                    .map(|limit| limit.index),
            ),
            backlogs,
            limits,
            plan,
        }
    }

    /// What `amount` units of a limit weigh when keys are compared: see [`times_per_unit`](Self::times_per_unit).
    pub(in crate::engine) fn time_for(&self, limit: usize, amount: u64) -> Served {
        let per_unit = self.times_per_unit.get(limit).copied().unwrap_or(0);
        amount.saturating_mul(per_unit).min(MAX_COST)
    }

    /// The limits that each key has for itself: what a row has of its own.
    pub(crate) fn limits_of_keys(&self) -> impl Iterator<Item = &LimitRules> {
        self.limits.iter().filter(|limit| !limit.is_overall())
    }

    /// The limits that all keys have together.
    pub(crate) fn overall_limits(&self) -> impl Iterator<Item = &LimitRules> {
        self.limits.iter().filter(|limit| limit.is_overall())
    }

    /// The limits that give back, in the order of a hold's amounts.
    #[inline]
    pub(crate) fn held_limits(&self) -> impl Iterator<Item = &LimitRules> {
        self.held_indexes
            .iter()
            .filter_map(|index| self.limits.get(*index))
    }
}
