//! Measures, in one run, the operations of shmlimit beside the floor they stand on and beside governor, and prints
//! a table of times and ratios.
//!
//! Everything is measured in turn for a few milliseconds, over and over, so that all of it meets the same weather on a
//! machine that others use as well; and of the rounds the tenth percentile counts, so that the weather matters little.

mod commands;
#[allow(dead_code)]
#[path = "../../common/mod.rs"]
mod common;
mod governor_checks;
mod keyed;
mod keyed_at_scale;
mod machine;
mod stopwatch;
mod waiters;

use std::time::Duration;

use common::operations::{LOCK_AND_CLOCK, ONE_LIMIT, Place, THREE_LIMITS, floors, operations};
use common::processes::{Work, throughput, work_if_told_to};
use governor_checks::{THREE_CHECKS, checks};
use stopwatch::Measurements;

const PROCESSES: [usize; 3] = [1, 2, 4];
/// How long one operation is repeated before the next has its turn.
const TURN: Duration = Duration::from_millis(3);

fn main() {
    work_if_told_to();
    if keyed::fill_if_told_to() || keyed_at_scale::work_if_told_to() {
        return;
    }
    let brief = std::env::args().any(|argument| argument == "--brief");
    let (rounds, process_rounds, process_time, command_rounds, keyed_rounds) = if brief {
        (15, 5, Duration::from_millis(50), 51, 11)
    } else {
        (101, 31, Duration::from_millis(100), 501, 51)
    };
    if std::env::args().any(|argument| argument == "--commands") {
        println!("{}\n", machine::describe());
        commands::compare(command_rounds);
        return;
    }
    if std::env::args().any(|argument| argument == "--waiters") {
        println!("{}\n", machine::describe());
        let (rounds, span) = if brief {
            (1, Duration::from_secs(3))
        } else {
            (3, Duration::from_secs(5))
        };
        waiters::compare(rounds, 20_000, span);
        return;
    }
    if std::env::args().any(|argument| argument == "--keyed") {
        println!("{}\n", machine::describe());
        keyed::compare(keyed_rounds);
        println!();
        keyed_at_scale::compare(keyed_rounds, directory_named());
        return;
    }
    let directory = common::directory();
    let mut all = floors(directory.path());
    all.extend(operations(Place::new(directory.path())));
    all.extend(checks());
    let measurements = Measurements::take(all, rounds, TURN);

    println!("# Benchmarks\n");
    println!("{}\n", machine::describe());
    println!(
        "One run of `cargo run --release -p rivals`: {rounds} interleaved rounds, of which the tenth percentile is"
    );
    println!(
        "shown. The floor is one uncontended lock and unlock of a process-shared robust mutex with one clock read"
    );
    println!("inside.\n");
    measurements.print(LOCK_AND_CLOCK);
    println!("\n## Several processes on one set\n");
    let two = processes(process_rounds, process_time, directory.path());
    println!("\n## A command under a permit\n");
    commands::compare(command_rounds);
    println!("\n## Limits by key\n");
    keyed::compare(keyed_rounds);
    println!();
    keyed_at_scale::compare(keyed_rounds, directory_named());
    println!("\n## Aims\n");
    println!("| aim | measured |");
    println!("|---|---|");
    println!(
        "| 1 limit within 1.5x of the floor | {:.2}x |",
        measurements.ratio(ONE_LIMIT, LOCK_AND_CLOCK)
    );
    println!(
        "| 3 limits within 1.1x of three governor checks | {:.2}x |",
        measurements.ratio(THREE_LIMITS, THREE_CHECKS)
    );
    println!(
        "| two processes at 20 M op/s or more in total | {:.1} M op/s |",
        two / 1e6
    );
}

/// Where large tables are to lie: what follows `--directory`, such as a file system with huge pages.
fn directory_named() -> Option<std::path::PathBuf> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--directory");
    arguments.nth(1).map(Into::into)
}

/// Prints what one, two and four processes do in all, and answers what two do with one limit.
fn processes(rounds: usize, time: Duration, directory: &std::path::Path) -> f64 {
    let mut cases: Vec<(Work, Vec<Vec<f64>>)> = Work::ALL
        .into_iter()
        .map(|work| (work, vec![Vec::new(); PROCESSES.len()]))
        .collect();
    for _ in 0..rounds {
        for (work, results) in &mut cases {
            for (count, results) in PROCESSES.into_iter().zip(results) {
                results.push(1.0 / throughput(directory, *work, count, time));
            }
        }
    }
    println!(
        "Millions of operations a second, all processes together: {rounds} interleaved rounds, of which a tenth"
    );
    println!("was faster.\n");
    println!("| what | 1 process | 2 processes | 4 processes |");
    println!("|---|---:|---:|---:|");
    let mut two = 0.0;
    for (work, results) in &cases {
        let totals: Vec<f64> = results
            .iter()
            .map(|results| 1.0 / common::tenth_percentile(results))
            .collect();
        let cells: Vec<String> = totals.iter().map(|total| format!("{:.1}", total / 1e6)).collect();
        println!("| {} | {} |", work.name(), cells.join(" | "));
        if *work == Work::OneLimit {
            two = totals[1];
        }
    }
    two
}
