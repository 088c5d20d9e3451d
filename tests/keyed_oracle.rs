//! Random traces over many keys, compared with a model that is as plain as can be: a map from each key to what it has
//! used of each limit, without rows, tables, journals or fractions.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use shmlimit::{
    Algorithm, Align, Declaration, Error, Keyed, Limit, LimitSet, OpenOptions, Outcome, Permit,
    RefusalReason, Segment, SetDeclaration, VirtualClock, WhenFull,
};

/// A table of so many keys is one bucket of as many rows.
const ROWS: usize = 32;
const START: u64 = 1_767_225_600_000_000_000;

/// What one limit is, and what one key has used of it.
#[derive(Clone, Debug)]
enum Used {
    /// Gcra, token bucket, leaky bucket: units times the window, worked off at `capacity` a nanosecond.
    Backlog {
        capacity: u64,
        window: u64,
        burst: u64,
        refunds: bool,
        level: u128,
        at: u64,
    },
    Window {
        capacity: u64,
        window: u64,
        by_utc: bool,
        is_budget: bool,
        used: u64,
        start: u64,
    },
    Log {
        capacity: u64,
        window: u64,
        entries: Vec<(u64, u64)>,
    },
    Concurrency {
        capacity: u64,
        held: u64,
    },
}

impl Used {
    /// Works off what time has replenished.
    fn come_to(&mut self, now: u64) {
        match self {
            Self::Backlog {
                capacity, level, at, ..
            } => {
                *level = level.saturating_sub(u128::from(*capacity) * u128::from(now - *at));
                *at = now;
            }
            Self::Window {
                window, used, start, ..
            } if now >= *start + *window => *used = 0,
            Self::Log { window, entries, .. } => entries.retain(|(at, _)| now < at + *window),
            Self::Window { .. } | Self::Concurrency { .. } => {}
        }
    }

    fn is_impossible(&self, cost: u64) -> bool {
        match self {
            Self::Backlog { burst, .. } => cost > *burst,
            Self::Window { is_budget: true, .. } => false,
            Self::Window { capacity, .. }
            | Self::Log { capacity, .. }
            | Self::Concurrency { capacity, .. } => cost > *capacity,
        }
    }

    fn admits(&self, cost: u64) -> bool {
        match self {
            Self::Backlog {
                window, burst, level, ..
            } => level + u128::from(cost) * u128::from(*window) <= u128::from(*burst) * u128::from(*window),
            Self::Window {
                is_budget: true,
                used,
                capacity,
                ..
            } => used < capacity,
            Self::Window { used, capacity, .. } => used + cost <= *capacity,
            Self::Log {
                entries, capacity, ..
            } => sum(entries) + cost <= *capacity,
            Self::Concurrency { capacity, held } => held + cost <= *capacity,
        }
    }

    fn charge(&mut self, now: u64, cost: u64) {
        match self {
            Self::Backlog { window, level, .. } => *level += u128::from(cost) * u128::from(*window),
            Self::Window {
                window,
                by_utc,
                used,
                start,
                ..
            } => {
                if *used == 0 {
                    *start = if *by_utc { now - now % *window } else { now };
                }
                *used += cost;
            }
            Self::Log { entries, .. } if cost > 0 => entries.push((now, cost)),
            Self::Log { .. } => {}
            Self::Concurrency { held, .. } => *held += cost,
        }
    }

    /// What is left of a charge of `cost` that left the backlog at `after`, `elapsed` ago.
    fn refund(&mut self, unused: u64, cost: u64, after: u128, elapsed: u64) {
        if let Self::Backlog {
            capacity,
            window,
            refunds: true,
            level,
            ..
        } = self
        {
            let left = after.saturating_sub(u128::from(*capacity) * u128::from(elapsed));
            let left = left.min(u128::from(cost) * u128::from(*window));
            *level -= left.min(*level).min(u128::from(unused) * u128::from(*window));
        }
    }

    fn backlog(&self) -> u128 {
        match self {
            Self::Backlog { level, .. } => *level,
            _ => 0,
        }
    }

    fn remaining(&self) -> u64 {
        match self {
            Self::Backlog {
                window, burst, level, ..
            } => {
                let free = (u128::from(*burst) * u128::from(*window)).saturating_sub(*level);
                u64::try_from(free / u128::from(*window)).expect("at most the burst")
            }
            Self::Window { used, capacity, .. } => capacity.saturating_sub(*used),
            Self::Log {
                entries, capacity, ..
            } => capacity.saturating_sub(sum(entries)),
            Self::Concurrency { capacity, held } => capacity - held,
        }
    }

    fn carries_something(&self) -> bool {
        match self {
            Self::Backlog { level, .. } => *level > 0,
            Self::Window { used, .. } => *used > 0,
            Self::Log { entries, .. } => !entries.is_empty(),
            Self::Concurrency { held, .. } => *held > 0,
        }
    }

    /// The share that is used of the most that can be, in parts of 2^32, rounded up; and in how many nanoseconds nothing is.
    fn usage(&self, now: u64) -> (u128, u64) {
        let share = |used: u128, whole: u128| (used << 32).div_ceil(whole);
        match self {
            Self::Backlog {
                capacity,
                window,
                burst,
                level,
                ..
            } => (
                share(*level, u128::from(*burst) * u128::from(*window)),
                nanos(level.div_ceil(u128::from(*capacity))),
            ),
            Self::Window { used: 0, .. } | Self::Concurrency { .. } => (0, 0),
            Self::Window {
                capacity,
                window,
                used,
                start,
                ..
            } => (
                share(u128::from(*used), u128::from(*capacity)),
                start + window - now,
            ),
            Self::Log {
                capacity,
                window,
                entries,
            } => (
                share(u128::from(sum(entries)), u128::from(*capacity)),
                entries.last().map_or(0, |(at, _)| at + window - now),
            ),
        }
    }

    /// In how many nanoseconds one unit is admitted that is not now; `None` where time does not help.
    fn admits_one_in(&self, now: u64) -> Option<u64> {
        match self {
            Self::Backlog {
                capacity,
                window,
                burst,
                level,
                ..
            } => {
                let most = u128::from(burst - 1) * u128::from(*window);
                Some(nanos((level - most).div_ceil(u128::from(*capacity))))
            }
            Self::Window { window, start, .. } => Some(start + window - now),
            Self::Log {
                capacity,
                window,
                entries,
            } => {
                let fits = |index: &usize| sum(&entries[index + 1..]) < *capacity;
                let last_to_go = (0..entries.len()).find(fits)?;
                Some(entries[last_to_go].0 + window - now)
            }
            Self::Concurrency { .. } => None,
        }
    }

    /// What a reset leaves: what is held stays held.
    fn reset(&mut self) {
        match self {
            Self::Backlog { level, .. } => *level = 0,
            Self::Window { used, .. } => *used = 0,
            Self::Log { entries, .. } => entries.clear(),
            Self::Concurrency { .. } => {}
        }
    }
}

fn nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).expect("a time in range")
}

fn sum(entries: &[(u64, u64)]) -> u64 {
    entries.iter().map(|(_, cost)| cost).sum()
}

/// What a key has used, and when it was last decided on.
#[derive(Clone, Debug)]
struct KeyModel {
    limits: Vec<Used>,
    used_at: u64,
    /// What was reserved before is void.
    void_before: u64,
}

impl KeyModel {
    fn carries_something(&self) -> bool {
        self.limits.iter().any(Used::carries_something)
    }

    /// What a key loses with its row, whose loss is the least first: its largest share, when it is replenished, and when
    /// it was used last.
    fn usage(&self, now: u64) -> (u128, u64, u64) {
        let usages = self.limits.iter().map(|limit| limit.usage(now));
        let (shares, waits): (Vec<_>, Vec<_>) = usages.unzip();
        let most = shares.into_iter().max().expect("a limit");
        (most, waits.into_iter().max().expect("a limit"), self.used_at)
    }

    fn is_limited(&self) -> bool {
        !self.limits.iter().all(|limit| limit.admits(1))
    }

    /// In how many nanoseconds a limited key is limited no longer.
    fn limited_for(&self, now: u64) -> Option<u64> {
        let refusing = self.limits.iter().filter(|limit| !limit.admits(1));
        let waits: Option<Vec<u64>> = refusing.map(|limit| limit.admits_one_in(now)).collect();
        waits?.into_iter().max()
    }

    fn is_held(&self) -> bool {
        self.limits
            .iter()
            .any(|it| matches!(it, Used::Concurrency { held: 1.., .. }))
    }
}

/// One limit, declared and modelled.
fn limit(
    index: usize,
    algorithm: Option<Algorithm>,
    capacity: u64,
    window: u64,
    variant: bool,
) -> (Limit, Used) {
    let name = format!("limit-{index}");
    let length = Duration::from_nanos(window);
    let Some(algorithm) = algorithm else {
        return if variant {
            let limit = Limit::budget(name, capacity, length).align(Align::FirstUse);
            let used = Used::Window {
                capacity,
                window,
                by_utc: false,
                is_budget: true,
                used: 0,
                start: 0,
            };
            (limit, used)
        } else {
            (
                Limit::concurrency(name, capacity),
                Used::Concurrency { capacity, held: 0 },
            )
        };
    };
    let limit = Limit::rate(name, capacity, length).algorithm(algorithm);
    match algorithm {
        Algorithm::FixedWindow => {
            let align = if variant { Align::Utc } else { Align::FirstUse };
            let used = Used::Window {
                capacity,
                window,
                by_utc: variant,
                is_budget: false,
                used: 0,
                start: 0,
            };
            (limit.align(align), used)
        }
        Algorithm::SlidingWindow => (
            limit.entries(256),
            Used::Log {
                capacity,
                window,
                entries: Vec::new(),
            },
        ),
        _ => {
            let burst = if variant { capacity.div_ceil(2) } else { capacity };
            let refunds = algorithm != Algorithm::LeakyBucket;
            (
                limit.burst(burst),
                Used::Backlog {
                    capacity,
                    window,
                    burst,
                    refunds,
                    level: 0,
                    at: START,
                },
            )
        }
    }
}

fn any_limit(index: usize) -> impl Strategy<Value = (Limit, Used)> {
    let algorithms = prop::sample::select(vec![
        Some(Algorithm::Gcra),
        Some(Algorithm::TokenBucket),
        Some(Algorithm::LeakyBucket),
        Some(Algorithm::FixedWindow),
        Some(Algorithm::SlidingWindow),
        None,
    ]);
    // Short enough to come round often, or long enough for the table to fill up.
    let windows = prop_oneof![1 => 50..2_000_u64, 3 => 20_000..1_000_000_u64];
    (algorithms, 1..20_u64, windows, any::<bool>()).prop_map(move |(algorithm, capacity, window, variant)| {
        limit(index, algorithm, capacity, window, variant)
    })
}

fn any_limits() -> impl Strategy<Value = Vec<(Limit, Used)>> {
    prop_oneof![
        any_limit(0).prop_map(|limit| vec![limit]),
        (any_limit(0), any_limit(1)).prop_map(|(one, other)| vec![one, other]),
        (any_limit(0), any_limit(1), any_limit(2)).prop_map(|(one, other, third)| vec![one, other, third]),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        key: usize,
        costs: [u64; 3],
    },
    /// Settles one of the permits that are out to these shares of 4 of what was reserved.
    Settle {
        permit: usize,
        shares: [u64; 3],
    },
    Release {
        permit: usize,
    },
    Reset {
        key: usize,
    },
}

fn any_step(keys: usize) -> impl Strategy<Value = (u64, Step)> {
    let costs = || prop::array::uniform3(0..12_u64);
    let step = prop_oneof![
        8 => (0..keys, costs()).prop_map(|(key, costs)| Step::Acquire { key, costs }),
        3 => (any::<usize>(), prop::array::uniform3(0..7_u64))
            .prop_map(|(permit, shares)| Step::Settle { permit, shares }),
        4 => any::<usize>().prop_map(|permit| Step::Release { permit }),
        1 => (0..keys).prop_map(|key| Step::Reset { key }),
    ];
    // At least a nanosecond, so that no two keys were used at the same instant.
    let pause = prop_oneof![6 => 1..10_u64, 2 => 10..200_u64, 1 => 200..3_000_u64];
    (pause, step)
}

struct PermitModel {
    key: usize,
    decided_at: u64,
    /// Costs, and the backlogs that they left.
    taken: Vec<(u64, u128)>,
    is_settled: bool,
}

struct Oracle {
    _folder: tempfile::TempDir,
    clock: VirtualClock,
    segment: Segment,
    set: LimitSet,
    fresh: Vec<Used>,
    when_full: WhenFull,
    /// Rows, where all keys share them.
    rows: usize,
    keys: HashMap<usize, KeyModel>,
    evicted_in_use: u64,
    refused_keys: u64,
    now: u64,
}

impl Oracle {
    fn new(limits: &[(Limit, Used)], max_keys: u64, when_full: WhenFull) -> Self {
        let keyed = Keyed::new(max_keys).when_full(when_full);
        let declared = SetDeclaration::new("api").keyed(keyed).holds(4096);
        let has_holds = limits
            .iter()
            .any(|(_, used)| matches!(used, Used::Concurrency { .. }));
        let declared = if has_holds {
            declared
        } else {
            SetDeclaration::new("api").keyed(Keyed::new(max_keys).when_full(when_full))
        };
        let declared = limits
            .iter()
            .fold(declared, |set, (limit, _)| set.limit(limit.clone()));
        let folder = tempfile::tempdir().expect("a folder");
        let clock = VirtualClock::new(Duration::from_nanos(START));
        let segment = OpenOptions::new()
            .virtual_clock(&clock)
            .create(folder.path().join("limits"), &Declaration::new().set(declared))
            .expect("a segment");
        let set = segment.set("api").expect("declared");
        let rows = if max_keys <= ROWS as u64 { ROWS } else { usize::MAX };
        Self {
            _folder: folder,
            clock,
            segment,
            set,
            fresh: limits.iter().map(|(_, used)| used.clone()).collect(),
            when_full,
            rows,
            keys: HashMap::new(),
            evicted_in_use: 0,
            refused_keys: 0,
            now: START,
        }
    }

    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        self.clock.advance_to(Duration::from_nanos(self.now));
        for key in self.keys.values_mut() {
            for limit in &mut key.limits {
                limit.come_to(self.now);
            }
        }
    }

    fn new_key(&self) -> KeyModel {
        let mut limits = self.fresh.clone();
        for limit in &mut limits {
            limit.come_to(self.now);
        }
        KeyModel {
            limits,
            used_at: self.now,
            void_before: 0,
        }
    }

    /// Whether there is a row for the key, or one was made by forgetting the key that the policy names; if not, after
    /// how long there will be one.
    fn find_room_for(&mut self, key: usize) -> Result<(), Option<u64>> {
        if self.keys.get(&key).is_some_and(KeyModel::carries_something) {
            return Ok(());
        }
        let carrying = self.keys.values().filter(|it| it.carries_something()).count();
        if carrying < self.rows {
            return Ok(());
        }
        let now = self.now;
        let others = || {
            let others = self.keys.iter();
            others.filter(|(_, it)| it.carries_something() && !it.is_held())
        };
        let evicted = match self.when_full {
            WhenFull::EvictOldest => others().min_by_key(|(_, it)| it.used_at),
            WhenFull::EvictLeastUsed => {
                let unlimited = others().filter(|(_, it)| !it.is_limited());
                let least_used = unlimited.min_by_key(|(_, it)| it.usage(now));
                if least_used.is_none() {
                    return Err(others().filter_map(|(_, it)| it.limited_for(now)).min());
                }
                least_used
            }
            _ => None,
        };
        let evicted = *evicted.ok_or(None)?.0;
        let forgotten = self.keys.get_mut(&evicted).expect("one of them");
        forgotten.limits.iter_mut().for_each(Used::reset);
        forgotten.void_before = self.now + 1;
        self.evicted_in_use += 1;
        Ok(())
    }

    /// What is left of each limit, as the segment says and as the model does.
    fn check_key(&self, key: usize) {
        let mut request = self.set.request();
        for index in 0..self.fresh.len() {
            request.set(format!("limit-{index}"), 0).expect("declared");
        }
        let verdicts = self
            .set
            .key(name(key))
            .expect("a key")
            .peek(&request)
            .expect("works");
        let said: Vec<u64> = verdicts.iter().map(|verdict| verdict.remaining).collect();
        let fresh = self.new_key();
        let model = self.keys.get(&key).unwrap_or(&fresh);
        let modelled: Vec<u64> = model.limits.iter().map(Used::remaining).collect();
        assert_eq!(said, modelled, "left of {} at {}", name(key), self.now - START);
    }

    fn acquire<'a>(
        &mut self,
        set: &'a LimitSet,
        key: usize,
        costs: &[u64],
    ) -> Option<(Permit<'a>, PermitModel)> {
        let mut request = set.request();
        for (index, cost) in costs.iter().enumerate() {
            request.set(format!("limit-{index}"), *cost).expect("declared");
        }
        let outcome = set.key(name(key)).expect("a key").try_acquire(&request);
        let limits = self.fresh.iter().zip(costs);
        if limits.clone().any(|(limit, cost)| limit.is_impossible(*cost)) {
            assert!(
                matches!(outcome, Err(Error::NeverAdmissible { .. })),
                "{outcome:?}"
            );
            return None;
        }
        let outcome = outcome.expect("a decision");
        if let Err(room_in) = self.find_room_for(key) {
            self.refused_keys += 1;
            let Outcome::Refused(refusal) = outcome else {
                panic!("a new key was admitted though every row carries something");
            };
            assert_eq!(refusal.reason(), RefusalReason::TableFull);
            assert_eq!(refusal.retry_after(), room_in.map(Duration::from_nanos));
            return None;
        }
        let now = self.now;
        let new = self.new_key();
        let model = self.keys.entry(key).or_insert(new);
        model.used_at = now;
        let admits = model
            .limits
            .iter()
            .zip(costs)
            .all(|(limit, cost)| limit.admits(*cost));
        assert_eq!(
            outcome.is_admitted(),
            admits,
            "{model:?} of {costs:?}: {outcome:?}"
        );
        let permit = outcome.permit().ok()?;
        let charge = |(limit, cost): (&mut Used, &u64)| {
            limit.charge(now, *cost);
            (*cost, limit.backlog())
        };
        let taken = model.limits.iter_mut().zip(costs).map(charge).collect();
        Some((
            permit,
            PermitModel {
                key,
                decided_at: now,
                taken,
                is_settled: false,
            },
        ))
    }

    fn settle(&mut self, permit: &mut Permit<'_>, reserved: &mut PermitModel, shares: &[u64]) {
        if std::mem::replace(&mut reserved.is_settled, true) {
            return;
        }
        // A key that has nothing used, and would get another row by what it used above, is told from one that has the
        // same row still by when it was last decided on: which of them it is, only the table knows.
        let is_new = self.when_full != WhenFull::Refuse
            && !self
                .keys
                .get(&reserved.key)
                .is_some_and(KeyModel::carries_something);
        let mut usage = Vec::new();
        for (index, ((limit, (cost, _)), share)) in
            self.fresh.iter().zip(&reserved.taken).zip(shares).enumerate()
        {
            let used = cost * share / 4;
            if !matches!(limit, Used::Concurrency { .. }) {
                usage.push((index, if is_new { used.min(*cost) } else { used }));
            }
        }
        let names: Vec<String> = usage.iter().map(|(index, _)| format!("limit-{index}")).collect();
        let named = names
            .iter()
            .zip(&usage)
            .map(|(name, (_, used))| (name.as_str(), *used));
        permit.settle(named).expect("works");
        let charges = usage.iter().any(|(index, used)| *used > reserved.taken[*index].0);
        if charges && self.find_room_for(reserved.key).is_err() {
            return;
        }
        let now = self.now;
        let new = self.new_key();
        let model = self.keys.entry(reserved.key).or_insert(new);
        let is_void = reserved.decided_at < model.void_before || !model.carries_something();
        for (index, used) in usage {
            let (cost, after) = reserved.taken[index];
            if used > cost {
                model.limits[index].charge(now, used - cost);
            } else if !is_void {
                model.limits[index].refund(cost - used, cost, after, now - reserved.decided_at);
            }
        }
    }

    fn release(&mut self, permit: Permit<'_>, taken: &PermitModel) {
        drop(permit);
        let model = self.keys.get_mut(&taken.key).expect("admitted");
        for (limit, (cost, _)) in model.limits.iter_mut().zip(&taken.taken) {
            if let Used::Concurrency { held, .. } = limit {
                *held -= cost;
            }
        }
    }

    fn reset(&mut self, key: usize) {
        self.set.key(name(key)).expect("a key").reset(&[]).expect("works");
        if let Some(model) = self.keys.get_mut(&key) {
            model.limits.iter_mut().for_each(Used::reset);
            model.void_before = self.now + 1;
        }
    }

    fn run(&mut self, trace: impl IntoIterator<Item = (u64, Step)>) {
        let set = self.set.clone();
        let mut permits: Vec<(Permit<'_>, PermitModel)> = Vec::new();
        for (pause, step) in trace {
            self.pass(pause);
            let key = match step {
                Step::Acquire { key, costs } => {
                    permits.extend(self.acquire(&set, key, &costs[..self.fresh.len()]));
                    key
                }
                Step::Reset { key } => {
                    self.reset(key);
                    key
                }
                Step::Settle { permit, shares } if !permits.is_empty() => {
                    let index = permit % permits.len();
                    let (permit, taken) = &mut permits[index];
                    self.settle(permit, taken, &shares);
                    taken.key
                }
                Step::Release { permit } if !permits.is_empty() => {
                    let (permit, taken) = permits.swap_remove(permit % permits.len());
                    self.release(permit, &taken);
                    taken.key
                }
                Step::Settle { .. } | Step::Release { .. } => continue,
            };
            self.check_key(key);
        }
        for key in self.keys.keys() {
            self.check_key(*key);
        }
        let snapshot = self.segment.snapshot().expect("a snapshot").sets.remove(0);
        let keys = snapshot.keys.expect("keyed");
        assert_eq!(
            (keys.evicted_in_use, snapshot.counts.refused_table_full),
            (self.evicted_in_use, self.refused_keys)
        );
        assert!(keys.in_use <= keys.rows && keys.fullest_bucket <= ROWS as u64);
    }
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_table_that_refuses_decides_as_if_every_key_had_its_own_limits_until_it_is_full(
        limits in any_limits(), trace in prop::collection::vec(any_step(2 * ROWS), 1..600),
    ) {
        Oracle::new(&limits, ROWS as u64, WhenFull::Refuse).run(trace);
    }

    #[test]
    fn a_table_that_evicts_the_oldest_key_forgets_no_other(
        limits in any_limits(), trace in prop::collection::vec(any_step(2 * ROWS), 1..600),
    ) {
        Oracle::new(&limits, ROWS as u64, WhenFull::EvictOldest).run(trace);
    }

    #[test]
    fn a_table_that_evicts_the_least_used_key_forgets_no_other_and_none_that_is_limited(
        limits in any_limits(), trace in prop::collection::vec(any_step(2 * ROWS), 1..600),
    ) {
        Oracle::new(&limits, ROWS as u64, WhenFull::EvictLeastUsed).run(trace);
    }

    /// Each of many keys takes all it can, and more: the table is full of limited keys, and has room again.
    #[test]
    fn a_table_full_of_limited_keys_says_when_the_first_of_them_makes_room(
        limits in any_limits(),
        trace in prop::collection::vec((0..40_u64, 0..2 * ROWS, prop::array::uniform3(3..12_u64)), 200..400),
    ) {
        let acquire = |(pause, key, costs)| (1 + pause / 20, Step::Acquire { key, costs });
        Oracle::new(&limits, ROWS as u64, WhenFull::EvictLeastUsed).run(trace.into_iter().map(acquire));
    }

    #[test]
    fn a_table_of_many_shards_decides_as_if_every_key_had_its_own_limits(
        limits in any_limits(), trace in prop::collection::vec(any_step(1_000), 1..600),
    ) {
        Oracle::new(&limits, 1_000, WhenFull::Refuse).run(trace);
    }
}
