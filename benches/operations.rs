//! Every operation in one process, compared with the floor that they are built on.

#[allow(dead_code)]
mod common;

use std::time::{Duration, Instant};

use criterion::Criterion;

use common::operations::Place;

fn main() {
    let directory = common::directory();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let operations = common::operations::floors(directory.path())
        .into_iter()
        .chain(common::operations::operations(Place::new(directory.path())));
    for mut operation in operations {
        criterion.bench_function(&format!("{}/{}", operation.group, operation.name), |bencher| {
            bencher.iter_custom(|times| {
                let begin = Instant::now();
                (operation.run)(times);
                begin.elapsed()
            });
        });
    }
    criterion.final_summary();
}
