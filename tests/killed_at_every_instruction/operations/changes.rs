//! Operations to kill: changes to a live segment, checks, debits, and what adaptive limits do.

use shmlimit::declare::Adaptive;
use shmlimit::{Algorithm, Keyed, Limit, LimitSet, Permit, SetDeclaration};

use crate::operations::subject::{KEY, Subject};
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};

/// A limit for each way in which counting can go on under another definition.
pub fn before(set: SetDeclaration) -> SetDeclaration {
    set.add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR).algorithm(Algorithm::TokenBucket))
        .add_limit(
            Limit::rate("counted", 1_000, YEAR)
                .algorithm(Algorithm::SlidingWindow)
                .entries(2),
        )
        .add_limit(Limit::concurrency("in_flight", 3))
}

/// Some capacities are higher, some are lower, and some are for another time.
fn after(set: SetDeclaration) -> SetDeclaration {
    set.add_limit(Limit::calls("requests", 1_000, YEAR))
        .add_limit(Limit::rate("tokens", 5_000, YEAR * 2).algorithm(Algorithm::TokenBucket))
        .add_limit(
            Limit::rate("counted", 2_000, YEAR)
                .algorithm(Algorithm::SlidingWindow)
                .entries(2),
        )
        .add_limit(Limit::concurrency("in_flight", 2))
}

pub fn unkeyed() -> SetDeclaration {
    SetDeclaration::new(SET).waiters(2).holds(4)
}

fn keyed() -> SetDeclaration {
    unkeyed().keyed(Keyed::new(20).store_keys(false))
}

fn unkeyed_before() -> SetDeclaration {
    before(unkeyed())
}

fn keyed_before() -> SetDeclaration {
    before(keyed())
}

fn apply(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 1));
    victim.apply(after(unkeyed()));
}

/// The keys that have used something before the change.
pub const KEYS: [&str; 3] = [KEY, "other 0", "other 1"];

/// Each of them takes a different amount.
pub fn taken_by_keys(set: &LimitSet) -> Vec<Permit<'_>> {
    KEYS.iter()
        .zip(1..)
        .map(|(key, cost)| {
            let outcome = Subject::key(key).try_acquire(&everything(set, cost));
            outcome.expect("works").into_result().expect("admitted")
        })
        .collect()
}

fn apply_to_keys(victim: &Victim) {
    let set = victim.set();
    let _held = taken_by_keys(&set);
    victim.apply(after(keyed()));
}

fn budgets() -> SetDeclaration {
    keyed()
        .holds(0)
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::budget("budget", 10_000, YEAR))
}

/// One key has a row, and two get one.
fn check_many(victim: &Victim) {
    let set = victim.set();
    drop(admitted(&set, &everything(&set, 1)));
    let request = everything(&set, 1);
    victim.begins();
    let answers = request.check_many(&KEYS);
    let all = answers.is_ok_and(|answers| answers.iter().all(shmlimit::Checked::is_admitted));
    victim.ends();
    victim.expects(all);
}

fn debit(victim: &Victim) {
    let set = victim.set();
    drop(admitted(&set, &everything(&set, 1)));
    let key = set.key(KEY).expect("keyed");
    let budget = set.limit_index("budget").expect("declared");
    victim.begins();
    let answer = key.debit(budget, 20_000).is_ok_and(|answer| answer.is_admitted());
    victim.ends();
    victim.expects(answer);
}

/// A limit of which less can be had than the most that it may ever adapt to.
pub const ADAPTING: &str = "adapting";

fn adaptive(set: SetDeclaration, algorithm: Adaptive) -> SetDeclaration {
    set.holds(12).add_limit(
        Limit::concurrency(ADAPTING, 8)
            .adaptive(algorithm)
            .floor(2)
            .ceiling(20),
    )
}

fn adaptive_by_failures() -> SetDeclaration {
    adaptive(unkeyed(), Adaptive::Aimd)
}

fn adaptive_by_latency() -> SetDeclaration {
    adaptive(keyed(), Adaptive::Vegas)
}

fn release_after_failure(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 1));
    victim.begins();
    let released = permit.release_failed();
    victim.ends();
    released.expect("works");
}

fn release_after_success(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 1));
    victim.begins();
    let released = permit.release();
    victim.ends();
    released.expect("works");
}

pub const CHANGING_OPERATIONS: &[Operation] = &[
    Operation {
        applies: true,
        // Each limit whose rule has changed, and then the generation.
        ..operation("apply, 4 limits", unkeyed_before, 5, apply)
    },
    Operation {
        applies: true,
        is_keyed: true,
        // The limits of each key, and then the generation.
        ..operation("apply, 4 limits of 3 keys", keyed_before, 13, apply_to_keys)
    },
    Operation {
        is_keyed: true,
        // The decision for the first key, and a row and a decision for each of the others.
        ..operation("check_many, 3 keys", budgets, 5, check_many)
    },
    Operation {
        is_keyed: true,
        ..operation("debit", budgets, 1, debit)
    },
    operation(
        "release, adapting to a failure",
        adaptive_by_failures,
        1,
        release_after_failure,
    ),
    Operation {
        is_keyed: true,
        ..operation(
            "release, adapting to latency",
            adaptive_by_latency,
            1,
            release_after_success,
        )
    },
];
