//! What most tests begin with: a segment in a directory of its own, and what is asked of it.
// Each test file uses a part of it.
#![allow(dead_code)]

pub mod clock;
pub mod credit;
pub mod process;

use std::path::Path;

use shmlimit::{
    Declaration, Error, LimitSet, Outcome, Permit, Refusal, Segment, SetDeclaration, SetSnapshot,
};
use tempfile::TempDir;

/// A segment with one set, in a directory that is removed in the end.
pub fn create(set: SetDeclaration) -> (TempDir, Segment, LimitSet) {
    let directory = tempfile::tempdir().expect("a directory");
    let (segment, set) = create_in(directory.path(), set);
    (directory, segment, set)
}

/// A segment with one set: the file `limits` of a directory.
pub fn create_in(directory: &Path, set: SetDeclaration) -> (Segment, LimitSet) {
    let segment =
        Segment::create(directory.join("limits"), &Declaration::new().add_set(set)).expect("a segment");
    let set = segment.sets().next().expect("declared");
    (segment, set)
}

/// The permit of a request that is admitted.
#[track_caller]
pub fn expect_permit<'a>(outcome: Result<Outcome<'a>, Error>) -> Permit<'a> {
    outcome.expect("a decision").into_result().expect("admitted")
}

/// The refusal of a request that is not.
#[track_caller]
pub fn expect_refusal(outcome: Result<Outcome<'_>, Error>) -> Refusal {
    outcome.expect("a decision").into_result().expect_err("refused")
}

/// What the first set is seen to be, without a lock.
pub fn first_set(segment: &Segment) -> SetSnapshot {
    segment.snapshot().expect("a copy").sets.swap_remove(0)
}

/// How many requests wait in the first set's queue, and were granted nothing yet.
pub fn queued(segment: &Segment) -> usize {
    let tickets = first_set(segment).tickets;
    tickets.iter().filter(|ticket| !ticket.granted).count()
}
