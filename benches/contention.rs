//! Two, 32 and 64 processes, and threads of one process, on one limit: throughput, fairness, and the longest stall, next to
//! the longest gap of as many processes that share nothing.

#[allow(dead_code)]
mod common;

use std::time::Duration;

use common::processes::work_if_told_to;

fn main() {
    work_if_told_to();
    // `cargo test --benches` checks that this works; `cargo bench` measures how fast.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (rounds, time) = if measure {
        (5, Duration::from_secs(2))
    } else {
        (1, Duration::from_millis(10))
    };
    let directory = common::directory();
    common::contention::print(
        &common::contention::measure(directory.path(), rounds, time),
        rounds,
        time,
    );
}
