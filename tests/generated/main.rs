//! Generated declarations, under generated operations: each verb of the public API meets each option, and what holds of all
//! of them is asked after each step. No model of a limit says what is right; [`invariants`] do.
//!
//! Runs a short sample; `SHMLIMIT_GENERATED_SECONDS` makes it longer. Each case has a seed of its own, and
//! `SHMLIMIT_SEED` repeats one, or starts there if seconds are given too. A case that fails is made smaller and printed: kept in `tests/generated/kept/`, it is
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

const SECONDS: &str = "SHMLIMIT_GENERATED_SECONDS";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

fn seconds() -> Duration {
    Duration::from_secs(number(SECONDS).unwrap_or(5))
}

/// Each seed to try, one after the other, until the time is over.
fn seeds() -> impl Iterator<Item = u64> {
    let given = number("SHMLIMIT_SEED");
    let only_one = given.is_some() && number(SECONDS).is_none();
    let first = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let ends = Instant::now() + seconds();
    (first..).take_while(move |seed| *seed == first || (!only_one && Instant::now() < ends))
}

fn case(seed: u64) -> Case {
    Case::generate(seed, STEPS[(seed % 4) as usize])
}

#[test]
fn no_verb_breaks_an_invariant_of_any_declaration() {
    let mut cases = 0_u64;
    for seed in seeds() {
        let case = case(seed);
        if let Some(violation) = case.violation() {
            println!("SHMLIMIT_SEED={seed}: {violation}");
            let small = shrinking::shrink(case, &violation);
            let what = small.violation().unwrap_or(violation);
            let text = serde_json::to_string(&small).expect("JSON");
            panic!(
                "SHMLIMIT_SEED={seed}: {what}\nwith\n{}\nto be kept:\n{text}",
                small.declaration
            );
        }
        cases += 1;
    }
    println!("{cases} cases");
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
