//! Plain requests are decided on a fast path, which has a lane for a single backlog, a policy for several backlogs and
//! one for any limits. All others are decided on the general path. The results must be the same.
//!
//! Each trace is played twice: unchanged, and with an additional limit in shadow that every request takes, which keeps
//! the request off the fast path and changes nothing else.

use std::time::Duration;

use crate::scene::clock::Scene;
use proptest::prelude::*;
use shmlimit::{Algorithm, Error, Keyed, Limit, Outcome, Permit, SetDeclaration};

const SECOND: Duration = Duration::from_secs(1);
const KEYS: [&str; 2] = ["ann", "bob"];
/// The additional limit.
const SHADOW: &str = "shadow";

/// Limits of this kind and above get back what is held of them.
const FIRST_HELD: usize = 7;

#[derive(Clone, Debug)]
struct AnyLimit {
    kind: usize,
    capacity: u64,
}

impl AnyLimit {
    fn declared(&self, index: usize) -> Limit {
        let name = format!("{index}");
        let calls = |algorithm| Limit::calls(&*name, self.capacity, SECOND).algorithm(algorithm);
        match self.kind {
            0 => calls(Algorithm::Gcra),
            1 => calls(Algorithm::TokenBucket).burst(self.capacity * 2),
            2 => calls(Algorithm::LeakyBucket),
            3 => calls(Algorithm::FixedWindow),
            4 => calls(Algorithm::SlidingWindow),
            5 => calls(Algorithm::SlidingWindowCounter),
            6 => Limit::rate(&*name, self.capacity, SECOND),
            _ => Limit::concurrency(&*name, self.capacity),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Takes this much of each limit, for one of the keys.
    Take {
        key: usize,
        costs: [u64; 3],
    },
    /// Gives back one of the permits that are held.
    GiveBack(usize),
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..KEYS.len(), [0..4_u64, 0..4, 0..4]).prop_map(|(key, costs)| Step::Take { key, costs }),
        1 => (0..8_usize).prop_map(Step::GiveBack),
        2 => (0..400_000_000_u64).prop_map(Step::Pass),
    ]
}

fn set_of(limits: &[AnyLimit], is_keyed: bool, holds: u32) -> SetDeclaration {
    let set = SetDeclaration::new("api");
    let is_held = limits.iter().any(|limit| limit.kind >= FIRST_HELD);
    let set = if is_held { set.holds(holds) } else { set };
    let set = if is_keyed { set.keyed(Keyed::new(64)) } else { set };
    limits
        .iter()
        .enumerate()
        .fold(set, |set, (index, limit)| set.add_limit(limit.declared(index)))
}

/// Everything that can be seen of the result of a trace.
fn played(
    set: SetDeclaration,
    limits: usize,
    is_keyed: bool,
    has_shadow: bool,
    steps: &[Step],
) -> Vec<String> {
    let set = if has_shadow {
        set.add_limit(Limit::calls(SHADOW, 1, SECOND).shadow(true))
    } else {
        set
    };
    let scene = Scene::new(set);
    let set = scene.set();
    let mut held: Vec<Permit<'_>> = Vec::new();
    let mut seen = Vec::new();
    for step in steps {
        match step {
            Step::Pass(nanos) => scene.pass(Duration::from_nanos(*nanos)),
            Step::GiveBack(_) if held.is_empty() => {}
            Step::GiveBack(index) => drop(held.swap_remove(index % held.len())),
            Step::Take { key, costs } => {
                let mut request = set.request();
                for (index, cost) in costs.iter().enumerate().take(limits) {
                    request.set_cost(&*index.to_string(), *cost).expect("declared");
                }
                let outcome = if is_keyed {
                    request.for_key(KEYS[*key]).expect("a key").try_acquire()
                } else {
                    request.try_acquire()
                };
                seen.push(match outcome {
                    Ok(Outcome::Admitted(permit)) => {
                        let said = verdicts(permit.verdicts());
                        held.push(permit);
                        said
                    }
                    Ok(Outcome::Refused(refusal)) => format!(
                        "{:?} {:?} {:?} {}",
                        refusal.binding(),
                        refusal.reason(),
                        refusal.retry_after(),
                        verdicts(refusal.verdicts())
                    ),
                    Err(Error::Request(error)) => format!("{error}"),
                    Err(error) => panic!("{error}"),
                });
            }
        }
        let mut snapshot = scene.snapshot();
        snapshot.limits.truncate(limits);
        let counts: Vec<_> = snapshot
            .limits
            .iter()
            .map(|limit| (limit.remaining, limit.reset_after, limit.counts))
            .collect();
        seen.push(format!(
            "{counts:?} {:?} {} held",
            snapshot.counts,
            snapshot.holds.len()
        ));
    }
    seen
}

fn verdicts<'a>(all: impl Iterator<Item = shmlimit::Verdict<'a>>) -> String {
    let all: Vec<_> = all.filter(|verdict| verdict.limit != SHADOW).collect();
    format!("{all:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_path_comes_to_the_same(
        limits in prop::collection::vec(
            (0..8_usize, 1..6_u64).prop_map(|(kind, capacity)| AnyLimit { kind, capacity }),
            1..4,
        ),
        is_keyed in any::<bool>(),
        holds in 2..6_u32,
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let set = || set_of(&limits, is_keyed, holds);
        let as_it_is = played(set(), limits.len(), is_keyed, false, &steps);
        let by_all_limits = played(set(), limits.len(), is_keyed, true, &steps);
        prop_assert_eq!(as_it_is, by_all_limits);
    }
}
