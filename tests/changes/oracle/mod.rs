//! Definitions that change at every step: whatever callers still hold from earlier ones, no more is ever admitted than
//! the definitions in force allow, and no more ever comes back than is left of a reservation.
//!
//! Random traces of acquiring, settling, dropping, reserving, drawing batches, applying, resetting and evicting on a
//! virtual clock, by two attachments that learn of each other's changes late, are checked against a [`model`] that
//! shares nothing with the engine. The same seed makes the same trace; a failure names the seed, with the steps that
//! led to it. Which of several equal rows a key takes depends on the random seed of each segment's hash, so a trace
//! with keys may have to be repeated a few times.
//! `SHMLIMIT_THOROUGH=1` runs many times as many traces.

mod model;
mod trace;

use model::Rule;
use shmlimit::Algorithm;
use shmlimit::declare::Adaptive;
use trace::{Kind, Subject, follow};

/// Follows traces of one kind, with one limit for all and with one for each key.
fn never_admits_more(kind: Kind, rule: Rule) {
    let traces = match std::env::var_os("SHMLIMIT_THOROUGH") {
        Some(_) => 3_000,
        None => 20,
    };
    for seed in 0..traces {
        for is_keyed in [false, true] {
            let subject = Subject { kind, rule, is_keyed };
            follow(subject, seed);
        }
    }
}

/// One rule under three names.
const NAMES: &[Algorithm] = &[Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

macro_rules! oracle_tests {
    ($($name:ident: $kind:expr, $rule:expr;)*) => {
        $(
            #[test]
            fn $name() {
                never_admits_more($kind, $rule);
            }
        )*
    };
}

oracle_tests! {
    gcra_admits_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::Gcra]), Rule::Tokens;
    token_buckets_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::TokenBucket]), Rule::Tokens;
    leaky_buckets_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::LeakyBucket]), Rule::Tokens;
    limits_that_change_their_algorithm_admit_what_the_definitions_in_force_allow: Kind::Rate(NAMES), Rule::Tokens;
    windows_of_utc_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::FixedWindow]), Rule::WindowOfUtc;
    windows_of_first_use_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::FixedWindow]), Rule::WindowOfFirstUse;
    sliding_windows_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::SlidingWindow]), Rule::Log;
    sliding_window_counters_admit_what_the_definitions_in_force_allow: Kind::Rate(&[Algorithm::SlidingWindowCounter]), Rule::Counter;
    budgets_admit_what_the_definitions_in_force_allow: Kind::Budget, Rule::Budget;
    concurrency_admits_what_the_definitions_in_force_allow: Kind::Concurrency(None), Rule::Concurrency;
    aimd_admits_what_the_definitions_in_force_allow: Kind::Concurrency(Some(Adaptive::Aimd)), Rule::Adaptive;
    gradient_admits_what_the_definitions_in_force_allow: Kind::Concurrency(Some(Adaptive::Gradient)), Rule::Adaptive;
    vegas_admits_what_the_definitions_in_force_allow: Kind::Concurrency(Some(Adaptive::Vegas)), Rule::Adaptive;
}
