//! Sets with a limit from which processes draw batches, and what is asked about them.
// Each test file uses a part of it.
#![allow(dead_code)]

use std::path::Path;
use std::time::Duration;

use shmlimit::{Algorithm, Declaration, Limit, LimitCounts, LimitSet, Segment, SetDeclaration};

/// So long that nothing is replenished while a test runs.
pub const LONG: Duration = Duration::from_secs(3600 * 24 * 365);

pub const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowCounter,
];

pub const REFUNDING: [Algorithm; 2] = [Algorithm::Gcra, Algorithm::TokenBucket];

pub fn create(directory: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    let segment =
        Segment::create(directory.join("limits"), &Declaration::new().add_set(set)).expect("a segment");
    let set = segment.set("api").expect("declared");
    (segment, set)
}

pub fn one_limit(directory: &Path, limit: Limit) -> (Segment, LimitSet) {
    create(directory, SetDeclaration::new("api").add_limit(limit))
}

pub fn check(set: &LimitSet, cost: u64) -> bool {
    let request = set.request().with("calls", cost).expect("declared");
    set.check(&request).expect("works").is_admitted()
}

pub fn remaining(set: &LimitSet) -> u64 {
    set.peek(&set.request().with("calls", 1).expect("declared"))
        .expect("works")[0]
        .remaining
}

pub fn counts(segment: &Segment) -> LimitCounts {
    segment.snapshot().expect("a copy").sets[0].limits[0].counts
}
