//! Random traces over many keys, compared with the plainest possible model: a map from each key to what it has used of
//! each limit, without rows, tables, journals or fractions.

mod model;

use std::collections::HashMap;
use std::time::Duration;

use crate::scene::clock::{NEW_YEAR, Scene};
use model::{KeyModel, Used, any_limits};
use proptest::prelude::*;
use shmlimit::declare::{Scope, WhenFull};
use shmlimit::{Error, Keyed, Limit, LimitSet, Outcome, Permit, RefusalReason, RequestError, SetDeclaration};

const START: u64 = NEW_YEAR.as_nanos() as u64;

/// A table for this many keys is one bucket with as many rows.
const ROWS: usize = 32;

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        key: usize,
        costs: [u64; 3],
    },
    /// Settles one of the permits in use, with these quarters of what was reserved as used.
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
    // At least a nanosecond, so that no two keys are used at the same instant.
    let pause = prop_oneof![
        6 => 1..200_000_u64,
        2 => 200_000..4_000_000_u64,
        1 => 4_000_000..60_000_000_u64
    ];
    (pause, step)
}

struct PermitModel {
    key: usize,
    decided_at: u64,
    /// The costs, and the backlog that each of them left.
    taken: Vec<(u64, u128)>,
    is_settled: bool,
}

struct Oracle {
    scene: Scene,
    set: LimitSet,
    fresh: Vec<Used>,
    /// What has been used of each limit that all keys share. The models of single keys leave it out.
    overall: Vec<Option<Used>>,
    when_full: WhenFull,
    /// The number of rows, if all keys share them.
    rows: usize,
    keys: HashMap<usize, KeyModel>,
    evicted_in_use: u64,
    refused_keys: u64,
    now: u64,
}

impl Oracle {
    fn new(limits: &[(Limit, Used)], max_keys: u64, when_full: WhenFull) -> Self {
        Self::with_overall(limits, [false; 3], max_keys, when_full)
    }

    /// Has some of the limits for all keys together.
    fn with_overall(
        limits: &[(Limit, Used)],
        is_overall: [bool; 3],
        max_keys: u64,
        when_full: WhenFull,
    ) -> Self {
        let scopes = is_overall.map(|is_overall| [Scope::Key, Scope::AllKeys][usize::from(is_overall)]);
        let overall = limits.iter().zip(is_overall);
        let overall = overall.map(|((_, used), is_overall)| is_overall.then(|| used.clone()));
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
            .zip(scopes)
            .fold(declared, |set, ((limit, _), scope)| {
                set.add_limit(limit.clone().scope(scope))
            });
        let scene = Scene::new(declared);
        let rows = if max_keys <= ROWS as u64 { ROWS } else { usize::MAX };
        Self {
            set: scene.set(),
            scene,
            fresh: limits.iter().map(|(_, used)| used.clone()).collect(),
            overall: overall.collect(),
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
        self.scene.clock.advance_to(Duration::from_nanos(self.now));
        for key in self.keys.values_mut() {
            for limit in &mut key.limits {
                limit.come_to(self.now);
            }
        }
        for limit in self.overall.iter_mut().flatten() {
            limit.come_to(self.now);
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
            holds: 0,
            void_before: 0,
        }
    }

    /// Finds out whether there is a row for the key, or makes one by forgetting the key that the policy names. If
    /// neither is possible, returns how long it takes until there is a row.
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

    /// Checks that the segment and the model agree on what is left of each limit.
    fn check_key(&self, key: usize) {
        let mut request = self.set.request();
        for index in 0..self.fresh.len() {
            request.set_cost(format!("limit-{index}"), 0).expect("declared");
        }
        let verdicts = request.for_key(name(key)).expect("a key").peek().expect("works");
        let said: Vec<u64> = verdicts.iter().map(|verdict| verdict.remaining).collect();
        let fresh = self.new_key();
        let model = self.keys.get(&key).unwrap_or(&fresh);
        let of_key = |(own, overall): (&Used, &Option<Used>)| overall.as_ref().unwrap_or(own).remaining();
        let modelled: Vec<u64> = model.limits.iter().zip(&self.overall).map(of_key).collect();
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
            request
                .set_cost(format!("limit-{index}"), *cost)
                .expect("declared");
        }
        let outcome = request.for_key(name(key)).expect("a key").try_acquire();
        let limits = self.fresh.iter().zip(costs);
        if limits.clone().any(|(limit, cost)| limit.is_impossible(*cost)) {
            assert!(
                matches!(outcome, Err(Error::Request(RequestError::NeverAdmissible { .. }))),
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
        let mut limits: Vec<&mut Used> = model
            .limits
            .iter_mut()
            .zip(&mut self.overall)
            .map(|(own, overall)| overall.as_mut().unwrap_or(own))
            .collect();
        let admits = limits.iter().zip(costs).all(|(limit, cost)| limit.admits(*cost));
        assert_eq!(
            outcome.is_admitted(),
            admits,
            "{limits:?} of {costs:?}: {outcome:?}"
        );
        let permit = outcome.into_result().ok()?;
        let charge = |(limit, cost): (&mut &mut Used, &u64)| {
            limit.charge(now, *cost);
            (*cost, limit.backlog())
        };
        let taken = limits.iter_mut().zip(costs).map(charge).collect();
        model.holds += u64::from(holds_something(&self.fresh, costs));
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
        // If the key has used nothing, its overdraft would need another row, unless the key still has the same row as
        // when it was last decided on. Only the table knows which of the two it is.
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
        let now = self.now;
        // What all keys share needs no row, and is refunded whatever has become of the key's row.
        for (index, used) in &usage {
            let Some(limit) = &mut self.overall[*index] else {
                continue;
            };
            let (cost, after) = reserved.taken[*index];
            if *used > cost {
                limit.charge(now, used - cost);
            } else {
                limit.refund(cost - used, cost, after, (reserved.decided_at, now));
            }
        }
        usage.retain(|(index, _)| self.overall[*index].is_none());
        let charges = usage.iter().any(|(index, used)| *used > reserved.taken[*index].0);
        if charges && self.find_room_for(reserved.key).is_err() {
            return;
        }
        let new = self.new_key();
        let model = self.keys.entry(reserved.key).or_insert(new);
        let is_void = reserved.decided_at < model.void_before || !model.carries_something();
        for (index, used) in usage {
            let (cost, after) = reserved.taken[index];
            if used > cost {
                model.limits[index].charge(now, used - cost);
            } else if !is_void {
                model.limits[index].refund(cost - used, cost, after, (reserved.decided_at, now));
            }
        }
    }

    fn release(&mut self, permit: Permit<'_>, taken: &PermitModel) {
        drop(permit);
        let model = self.keys.get_mut(&taken.key).expect("admitted");
        let costs: Vec<u64> = taken.taken.iter().map(|(cost, _)| *cost).collect();
        model.holds -= u64::from(holds_something(&self.fresh, &costs));
        let limits = model.limits.iter_mut().zip(&mut self.overall);
        let limits = limits.map(|(own, overall)| overall.as_mut().unwrap_or(own));
        for (limit, (cost, _)) in limits.zip(&taken.taken) {
            if let Used::Concurrency { held, .. } = limit {
                *held -= cost;
            }
        }
    }

    fn reset(&mut self, key: usize) {
        self.set
            .key(name(key))
            .expect("a key")
            .reset()
            .run()
            .expect("works");
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
        let snapshot = self.scene.segment.snapshot().expect("a snapshot").sets.remove(0);
        let keys = snapshot.keys.expect("keyed");
        assert_eq!(
            (keys.evicted_in_use, snapshot.counts.refused_table_full),
            (self.evicted_in_use, self.refused_keys)
        );
        assert!(keys.in_use <= keys.rows && keys.fullest_bucket <= ROWS as u64);
    }
}

/// Whether a permit with these costs has a hold.
fn holds_something(limits: &[Used], costs: &[u64]) -> bool {
    let mut of_places = limits.iter().zip(costs);
    of_places.any(|(limit, cost)| matches!(limit, Used::Concurrency { .. }) && *cost > 0)
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

    /// Each of many keys takes all it can, and tries more: the table fills with limited keys, and has room again later.
    #[test]
    fn a_table_full_of_limited_keys_says_when_the_first_of_them_makes_room(
        limits in any_limits(),
        trace in prop::collection::vec((0..40_u64, 0..2 * ROWS, prop::array::uniform3(3..12_u64)), 200..400),
    ) {
        let acquire = |(pause, key, costs)| (1 + pause / 20, Step::Acquire { key, costs });
        Oracle::new(&limits, ROWS as u64, WhenFull::EvictLeastUsed).run(trace.into_iter().map(acquire));
    }

    #[test]
    fn limits_of_all_keys_decide_as_if_there_was_one_key_beside_those_of_each(
        limits in any_limits(), is_overall in any::<[bool; 3]>(), trace in prop::collection::vec(any_step(2 * ROWS), 1..600),
    ) {
        Oracle::with_overall(&limits, is_overall, 1_000, WhenFull::Refuse).run(trace);
    }

    /// A row that is given to another key neither keeps nor takes away anything that all keys have together.
    #[test]
    fn limits_of_all_keys_stay_as_they_are_while_keys_are_evicted(
        limits in any_limits(), is_overall in any::<[bool; 3]>(), trace in prop::collection::vec(any_step(2 * ROWS), 1..600),
    ) {
        Oracle::with_overall(&limits, is_overall, ROWS as u64, WhenFull::EvictOldest).run(trace);
    }

    #[test]
    fn a_table_of_many_shards_decides_as_if_every_key_had_its_own_limits(
        limits in any_limits(), trace in prop::collection::vec(any_step(1_000), 1..600),
    ) {
        Oracle::new(&limits, 1_000, WhenFull::Refuse).run(trace);
    }
}
