//! One, two and four processes on one set. Criterion measures one process, so this bench has its own harness: each
//! round measures every case for a fixed time, and the throughput that a tenth of the rounds exceeded is printed.

#[allow(dead_code)]
mod common;

use std::time::Duration;

use common::processes::{Work, throughput, work_if_told_to};

const PROCESSES: [usize; 3] = [1, 2, 4];

fn main() {
    work_if_told_to();
    // `cargo test --benches` checks that this works; `cargo bench` measures how fast.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (rounds, time) = if measure {
        (21, Duration::from_millis(100))
    } else {
        (1, Duration::from_millis(10))
    };
    let directory = common::directory();
    let mut cases: Vec<(Work, usize, Vec<f64>)> = Work::ALL
        .into_iter()
        .flat_map(|work| PROCESSES.map(|count| (work, count, Vec::new())))
        .collect();
    for _ in 0..rounds {
        for (work, count, results) in &mut cases {
            results.push(1e9 / throughput(directory.path(), *work, *count, time));
        }
    }
    println!(
        "{:<45} {:>9} {:>14} {:>9}",
        "what", "processes", "total M op/s", "ns per op"
    );
    for (work, count, results) in &cases {
        let nanos = common::tenth_percentile(results);
        println!(
            "{:<45} {count:>9} {:>14.2} {nanos:>9.1}",
            work.name(),
            1e3 / nanos
        );
    }
}
