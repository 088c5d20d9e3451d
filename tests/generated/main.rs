//! Generated declarations, under generated operations: each verb of the public API meets each option, and what holds of all
//! of them is asked after each step. No model of a limit says what is right; [`invariants`] do.
//!
//! Runs a short sample; `SHMLIMIT_GENERATED_SECONDS` makes it longer. Each case has a seed of its own, and
//! `SHMLIMIT_SEED` repeats one. A case that fails is made smaller and printed: kept in `tests/generated/kept/`, it is
//! tried again each time.

mod actor;
mod alone;
mod among;
mod declarations;
mod invariants;
#[path = "../layout_mirror/mod.rs"]
#[allow(dead_code)]
mod layout_mirror;
mod operations;
#[path = "../scene/mod.rs"]
mod scene;
mod shrinking;

use std::time::{Duration, Instant};

use alone::Case;

/// Some cases are long, so that states come together; most are not.
const STEPS: [usize; 4] = [12, 40, 99, 300];

fn seconds() -> Duration {
    let text = std::env::var("SHMLIMIT_GENERATED_SECONDS");
    Duration::from_secs(text.map_or(5, |text| text.parse().expect("a number of seconds")))
}

/// The seed to repeat, if one was given, and the first one otherwise.
fn seed() -> (u64, bool) {
    match std::env::var("SHMLIMIT_SEED") {
        Ok(text) => (text.parse().expect("a number"), true),
        Err(_) => (fastrand::u64(..1 << 40), false),
    }
}

fn case(seed: u64) -> Case {
    Case::generate(seed, STEPS[(seed % 4) as usize])
}

#[test]
fn no_verb_breaks_an_invariant_of_any_declaration() {
    let (first, only_one) = seed();
    let ends = Instant::now() + seconds();
    let mut cases = 0_u64;
    while cases == 0 || (!only_one && Instant::now() < ends) {
        let seed = first + cases;
        let case = case(seed);
        if let Some(violation) = case.violation() {
            println!("SHMLIMIT_SEED={seed}: {violation}");
            let small = shrinking::shrink(case);
            let what = small.violation().unwrap_or(violation);
            let text = serde_json::to_string(&small).expect("JSON");
            panic!(
                "SHMLIMIT_SEED={seed}: {what}\nwith\n{}\nto be kept:\n{text}",
                small.declaration
            );
        }
        cases += 1;
    }
    println!("{cases} cases from SHMLIMIT_SEED={first} on");
}

#[test]
fn what_was_found_before_stays_mended() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generated/kept");
    for file in std::fs::read_dir(kept).expect("a directory") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path).expect("readable");
            let case: Case = serde_json::from_str(&text).expect("a case");
            if let Some(violation) = case.violation() {
                panic!("{}: {violation}", path.display());
            }
        }
    }
}
