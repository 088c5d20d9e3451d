//! What share of a common rate each key gets: in a set whose keys share the rate and, for comparison, in a set without
//! keys and from a semaphore of one process (tokio's), both of which serve in order of arrival.
//!
//! There are three parts; if the command line names some of them, only those run. `simulated` runs on a virtual clock,
//! with the same results on any machine. `grants` measures the time of a grant among many waiters. `processes` kills
//! processes that serve tenants, for 60 seconds or as many as `--seconds` says.

#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;
mod contest;
mod gateways;
mod grants;
mod scenarios;

use std::path::Path;
use std::time::Duration;

use contest::Discipline;
use scenarios::SCENARIOS;

const DISCIPLINES: [Discipline; 3] = [
    Discipline::Fair,
    Discipline::FirstComeFirstServed,
    Discipline::Semaphore,
];

fn main() {
    gateways::serve_if_told_to();
    // `cargo test --benches` checks that this works; `cargo bench` measures how well.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let directory = common::directory();
    if is_wanted("simulated") {
        print_simulated(directory.path(), if measure { 600 } else { 20 });
    }
    if is_wanted("grants") {
        let (rounds, waiters) = if measure { (20_000, 4_096) } else { (100, 128) };
        print_grants(directory.path(), rounds, [(64, 60), (waiters, 150)]);
    }
    if is_wanted("processes") {
        let seconds = if measure { seconds().unwrap_or(60) } else { 1 };
        print_gateways(directory.path(), Duration::from_secs(seconds));
    }
}

/// Whether the arguments name this part, or no part at all.
fn is_wanted(part: &str) -> bool {
    let is_part = |argument: &String| ["simulated", "grants", "processes"].contains(&argument.as_str());
    let mut named = std::env::args().filter(is_part).peekable();
    named.peek().is_none() || named.any(|name| name == part)
}

fn print_simulated(directory: &Path, length: u64) {
    println!(
        "simulated for {length} s; in columns: keys share the rate | no keys | a semaphore; and the aim"
    );
    for scenario in SCENARIOS {
        println!("{}", scenario.name);
        let figures = DISCIPLINES.map(|discipline| {
            let figure = (scenario.measure)(directory, discipline, length);
            figure.unwrap_or_else(|| "-".to_owned())
        });
        println!(
            "    {:>14} | {:>14} | {:>14}    aim: {}",
            figures[0], figures[1], figures[2], scenario.aim
        );
    }
}

/// The argument after `--seconds`.
fn seconds() -> Option<u64> {
    let number = std::env::args()
        .skip_while(|argument| argument != "--seconds")
        .nth(1)?;
    Some(number.parse().expect("a number of seconds"))
}

fn print_grants(directory: &Path, rounds: usize, cases: [(u64, u64); 2]) {
    println!("a release that grants to the next, medians of {rounds}: of keys | without");
    for (waiters, aim) in cases {
        let [fair, first] = [true, false]
            .map(|is_keyed| grants::median_release(directory, waiters, is_keyed, rounds).as_nanos());
        println!("    {waiters:>5} waiters: {fair:>6} ns | {first:>6} ns    aim: at most {aim} ns more");
    }
}

fn print_gateways(directory: &Path, time: Duration) {
    println!("three processes that serve 200 tenants, one of them killed each 100 ms, for {time:?}");
    let gateways::Result {
        kills,
        served,
        places_lost,
        least,
        most,
    } = gateways::measure(directory, time);
    println!(
        "    {kills} kills, {served} requests served, {places_lost} places lost; a tenant got {:.1} to {:.1} % of the mean    \
         aim: none lost, 95 to 105 %",
        100.0 * least,
        100.0 * most
    );
}
