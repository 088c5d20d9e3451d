//! Generated declarations under generated operations: each verb of the public API meets each option, and after each
//! step, what must always be true is checked. No model of a limit says what is right; the [`invariants`] do.
//!
//! Runs the same sample each time or, with `SHMLIMIT_GENERATED_SECONDS`, other cases for that long. Each case has its
//! own seed. `SHMLIMIT_SEED` repeats the case of a seed or, if seconds are given too, starts there. A case that fails
//! is reduced and printed. If you keep it in `tests/generated/kept/`, it is tried again each time.

mod actor;
mod alone;
mod among;
mod declarations;
mod invariants;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod operations;
#[path = "../scene/mod.rs"]
mod scene;
mod shrinking;

use std::time::{Duration, Instant};

use alone::Case;

/// Some cases are long, so that states accumulate. Most are not.
const STEPS: [usize; 4] = [12, 40, 99, 300];

const SECONDS: &str = "SHMLIMIT_GENERATED_SECONDS";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

fn seconds() -> Duration {
    Duration::from_secs(number(SECONDS).unwrap_or(60))
}

/// The seeds of the sample, which is the same each time.
const SAMPLE: std::ops::Range<u64> = 7_000_000..7_000_010;

/// The seeds to try: a given one, as many as there is time for, or those of the sample.
fn seeds() -> impl Iterator<Item = u64> {
    let (given, lasts) = (number("SHMLIMIT_SEED"), number(SECONDS));
    let range = match (given, lasts) {
        (Some(seed), None) => seed..seed + 1,
        (None, None) => SAMPLE,
        (given, Some(_)) => given.unwrap_or_else(|| fastrand::u64(..1 << 40))..u64::MAX,
    };
    let ends = lasts.map(|lasts| Instant::now() + Duration::from_secs(lasts));
    range.take_while(move |_| ends.is_none_or(|ends| Instant::now() < ends))
}

fn case(seed: u64) -> Case {
    Case::generate(seed, STEPS[(seed % 4) as usize])
}

#[test]
fn no_verb_breaks_an_invariant_of_any_declaration() {
    let mut cases = 0_u64;
    for seed in seeds() {
        if cases == 0 {
            println!("from SHMLIMIT_SEED={seed} on");
        }
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
