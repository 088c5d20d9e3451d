//! What most tests begin with: a segment in a directory of its own, and what is asked of it.
// Each test file uses a part of it.
#![allow(dead_code)]

pub mod clock;
pub mod credit;
pub mod expected_panics;
pub mod held;
pub mod mounts;
pub mod names;
pub mod namespaces;
pub mod onlooker;
pub mod process;
pub mod touchy;

use std::path::Path;

use shmlimit::declare::{Difference, LockKind};
use shmlimit::snapshot::SetSnapshot;
use shmlimit::{
    Algorithm, ChangeError, Declaration, Error, LimitSet, Outcome, Permit, Refusal, Request, Segment,
    SetDeclaration,
};
use tempfile::TempDir;

/// Each algorithm that counts a rate.
pub const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowCounter,
];

/// The kind of lock that segments have in this run of the tests: `SHMLIMIT_TEST_LOCK`, or else the default.
pub fn lock_kind() -> LockKind {
    match std::env::var("SHMLIMIT_TEST_LOCK") {
        Ok(word) => word.parse().expect("a kind of lock"),
        Err(_) => LockKind::default(),
    }
}

/// A declaration without sets, for a segment with such locks.
pub fn declaration() -> Declaration {
    Declaration::new().lock(lock_kind())
}

/// A segment with one set, in a directory that is removed in the end.
pub fn create(set: SetDeclaration) -> (TempDir, Segment, LimitSet) {
    let directory = tempfile::tempdir().expect("a directory");
    let (segment, set) = create_in(directory.path(), set);
    (directory, segment, set)
}

/// A segment with one set: the file `limits` of a directory.
pub fn create_in(directory: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    let segment = Segment::create(directory.join("limits"), &declaration().add_set(set)).expect("a segment");
    let set = segment.sets().next().expect("declared");
    (segment, set)
}

/// The permit of a request that must be admitted.
#[track_caller]
pub fn expect_permit<'a>(outcome: Result<Outcome<'a>, Error>) -> Permit<'a> {
    outcome.expect("a decision").into_result().expect("admitted")
}

/// The refusal of a request that must be refused.
#[track_caller]
pub fn expect_refusal(outcome: Result<Outcome<'_>, Error>) -> Refusal {
    outcome.expect("a decision").into_result().expect_err("refused")
}

/// Whether a check of this key is admitted.
#[track_caller]
pub fn is_admitted(request: &Request<'_>, key: impl AsRef<[u8]>) -> bool {
    let checked = request.for_key(key).expect("a keyed set").check();
    checked.expect("a decision").is_admitted()
}

/// Why a declaration cannot be applied, in words.
#[track_caller]
pub fn expect_differences(applied: Result<Vec<Difference>, Error>) -> String {
    match applied {
        Err(Error::Change(ChangeError::CannotApply { differences, .. })) => {
            let words: Vec<_> = differences.iter().map(ToString::to_string).collect();
            words.join("; ")
        }
        other => panic!("{other:?}"),
    }
}

/// The first set, as it looks without a lock.
pub fn first_set(segment: &Segment) -> SetSnapshot {
    segment.snapshot().expect("a copy").sets.swap_remove(0)
}

/// How many requests wait in the first set's queue and have not been granted anything yet.
pub fn queued(segment: &Segment) -> usize {
    let tickets = first_set(segment).tickets;
    tickets.iter().filter(|ticket| !ticket.granted).count()
}
