//! Sets with a limit from which processes draw batches, and questions about them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shmlimit::declare::Align;
use shmlimit::snapshot::LimitCounts;
use shmlimit::{Algorithm, Limit, LimitSet, Segment, SetDeclaration};
use tempfile::TempDir;

use super::process::{Child, SharedWords};
use super::{create, create_in, first_set};

/// So long that nothing is replenished while a test runs.
pub const LONG: Duration = Duration::from_secs(3600 * 24 * 365);

pub const REFUNDING: [Algorithm; 3] = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket];

/// This many calls from the first one on, whatever the date is.
pub fn calls(capacity: u64, algorithm: Algorithm) -> Limit {
    from_first_use(Limit::calls("calls", capacity, LONG), algorithm)
}

/// A fixed window aligned to the clock could end in the middle of a test.
pub fn from_first_use(limit: Limit, algorithm: Algorithm) -> Limit {
    let limit = limit.algorithm(algorithm);
    match algorithm {
        Algorithm::FixedWindow => limit.align(Align::FirstUse),
        _ => limit,
    }
}

pub fn one_limit(limit: Limit) -> (TempDir, Segment, LimitSet) {
    create(SetDeclaration::new("api").add_limit(limit))
}

pub fn one_limit_in(directory: &Path, limit: Limit) -> (Segment, LimitSet) {
    create_in(directory, SetDeclaration::new("api").add_limit(limit))
}

pub fn check(set: &LimitSet, cost: u64) -> bool {
    let request = set.request().with("calls", cost).expect("declared");
    request.check().expect("works").is_admitted()
}

/// Takes one, two and three in turn until not even one is left, and counts what it took.
pub fn spend_all(set: &LimitSet, spent: &AtomicU64) {
    for cost in (1..4).cycle() {
        if check(set, cost) {
            spent.fetch_add(cost, Ordering::Relaxed);
        } else if cost == 1 {
            break;
        }
    }
}

/// Creates a segment in a directory of its own below this one. Returns it with how much this many children spent there
/// together, each by `spend`: by [`spend_all`], or by several requests at a time.
pub fn spent_by_children(
    directory: &Path,
    limit: Limit,
    children: usize,
    spend: impl Fn(&LimitSet, &AtomicU64),
) -> (TempDir, Segment, LimitSet, u64) {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let (segment, set) = one_limit_in(directory.path(), limit);
    let spent = SharedWords::new(children);
    let children: Vec<Child> = spent
        .iter()
        .map(|spent| Child::fork(|| spend(&set, spent)))
        .collect();
    children.into_iter().for_each(Child::succeed);
    let spent = spent.iter().map(|spent| spent.load(Ordering::Relaxed)).sum();
    (directory, segment, set, spent)
}

pub fn remaining(set: &LimitSet) -> u64 {
    set.request()
        .with("calls", 1)
        .expect("declared")
        .peek()
        .expect("works")[0]
        .remaining
}

pub fn counts(segment: &Segment) -> LimitCounts {
    first_set(segment).limits[0].counts
}
