//! Measures, in one run, the operations of shmlimit, the floor that they are built on, and governor, and prints a table
//! of times and ratios.
//!
//! The operations take turns of a few milliseconds, over and over, so that all of them are measured under the same
//! conditions, even on a shared machine. The figure for each is the tenth percentile of the rounds, because other
//! programs hardly affect it.

mod aims;
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

use aims::Aim;
use common::contention::Crowd;
use common::operations::{
    AUTOMATIC_CREDIT, CONCURRENCY, LOCK_AND_CLOCK, ONE_LIMIT, ONE_LIMIT_BY_THE_SYSTEM, Place, THREE_LIMITS,
    by_the_systems_clock, floors, operations,
};
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
    all.push(by_the_systems_clock(directory.path()));
    all.extend(checks());
    let measurements = Measurements::take(all, rounds, TURN);

    println!("# Benchmarks\n");
    println!("{}\n", machine::describe());
    println!(
        "One run of `cargo run --release -p rivals -- --python PYTHON`: {rounds} interleaved rounds, of which the tenth percentile is"
    );
    println!(
        "shown. The floor is one uncontended lock and unlock of a process-shared robust mutex with one clock read"
    );
    println!("inside.\n");
    measurements.print(LOCK_AND_CLOCK);
    println!("\n## Several processes on one set\n");
    processes(process_rounds, process_time, directory.path());
    println!("\n## A command under a permit\n");
    commands::compare(command_rounds);
    println!("\n## Limits by key\n");
    let by_key = keyed::compare(keyed_rounds);
    println!();
    let ten_million = keyed_at_scale::compare(keyed_rounds, directory_named());
    println!("\n## Many at once\n");
    let (rounds, time) = if brief {
        (1, Duration::from_secs(1))
    } else {
        (5, Duration::from_secs(2))
    };
    let crowds = common::contention::measure(directory.path(), rounds, time);
    common::contention::print(&crowds, rounds, time);
    let mut aims = of_times(&measurements, &by_key, ten_million);
    aims.extend(of_crowds(&crowds));
    aims.extend(aims::of_python(argument_after("--python").as_deref()));
    aims.extend(aims::of_instructions());
    println!("\n## Aims\n");
    aims::print(&aims);
}

fn of_times(measurements: &Measurements, by_key: &[keyed::Ratios], ten_million: f64) -> Vec<Aim> {
    let ratio = |what, aim, name, other| Aim::at_most(what, aim, "x", measurements.ratio(name, other));
    let mut aims = vec![
        ratio(
            "1 limit by clock_gettime, beside the floor",
            1.5,
            ONE_LIMIT_BY_THE_SYSTEM,
            LOCK_AND_CLOCK,
        ),
        ratio(
            "1 limit by the counter, beside the floor",
            1.0,
            ONE_LIMIT,
            LOCK_AND_CLOCK,
        ),
        ratio(
            "3 limits beside three governor checks by its counter",
            1.5,
            THREE_LIMITS,
            THREE_CHECKS,
        ),
        ratio("concurrency beside the floor", 3.0, CONCURRENCY, LOCK_AND_CLOCK),
        Aim::at_most(
            "a unit of automatic credit",
            5.0,
            " ns",
            measurements.tenth_percentile(AUTOMATIC_CREDIT),
        ),
    ];
    for (of_keys, (what, aim)) in by_key.iter().zip([
        ("check among 1 key, beside governor by key", 2.0),
        ("check among 10^5 keys, beside governor by key", 1.1),
        ("check among 10^6 keys, beside governor by key", 0.8),
    ]) {
        aims.push(Aim::at_most(what, aim, "x", of_keys.check));
    }
    if let Some(of_a_million) = by_key.last() {
        let what = "check_many of 64 among 10^6 keys, a key, beside governor by key";
        aims.push(Aim::at_most(what, 0.4, "x", of_a_million.check_many));
    }
    aims.push(Aim::at_most(
        "check among 10^7 keys beside 10^6",
        1.3,
        "x",
        ten_million,
    ));
    aims
}

fn of_crowds(crowds: &[Crowd]) -> Vec<Aim> {
    let of = |count| {
        crowds
            .iter()
            .find(|crowd| crowd.count == count && !crowd.is_of_threads)
    };
    let (Some(two), Some(many)) = (of(2), of(64)) else {
        return Vec::new();
    };
    let limited = many.on_one_limit;
    vec![
        Aim::at_least(
            "2 processes on one set",
            12.0,
            " M op/s",
            two.on_one_limit.rate / 1e6,
        ),
        Aim::at_least(
            "64 processes on one set, of what 2 do",
            60.0,
            " %",
            limited.rate / two.on_one_limit.rate * 100.0,
        ),
        Aim::at_least("64 processes on one set, Jain's index", 0.99, "", limited.jain),
        Aim::at_most(
            "64 processes on one set, longest stall beside the longest gap without a lock",
            2.0,
            "x",
            many.stall_ratio(),
        ),
    ]
}

/// The argument that follows `name`.
fn argument_after(name: &str) -> Option<std::path::PathBuf> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).map(Into::into)
}

/// Where large tables lie: the argument of `--directory`, such as a file system with huge pages.
fn directory_named() -> Option<std::path::PathBuf> {
    argument_after("--directory")
}

/// Prints what one, two and four processes achieve together.
fn processes(rounds: usize, time: Duration, directory: &std::path::Path) {
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
    for (work, results) in &cases {
        let totals: Vec<f64> = results
            .iter()
            .map(|results| 1.0 / common::tenth_percentile(results))
            .collect();
        let cells: Vec<String> = totals.iter().map(|total| format!("{:.1}", total / 1e6)).collect();
        println!("| {} | {} |", work.name(), cells.join(" | "));
    }
}
