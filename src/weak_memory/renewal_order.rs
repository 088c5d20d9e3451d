//! A renewal without the lock, and the end of a lease under it: `heartbeat` and `expire_hold` in
//! `src/engine/settle/lease.rs`.
//!
//! A renewal raises the instant and then checks whether the hold is still its own; the end of a lease takes the hold
//! and then checks whether the instant is unchanged. One of the two sees the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::Change::Max;
use super::Step::{Change, End, Fence, IfAny, IfNone, Label, Load, Store};
use super::machine::Machine;
use super::{Bounds, Outcome, Processor, Step, without};
use crate::explorer::{is_found, nothing_is_wrong};

const RENEWED_AT: usize = 0;
const OWNER: usize = 1;
const EXPIRED: usize = 2;
/// The count of the journal word in bit 0, its sequence above.
const JOURNAL: usize = 3;

/// `still_holds`: continues at `not_own` unless the hold is its own.
fn still_holds(not_own: &'static str) -> [Step; 5] {
    [
        Load(0, OWNER, Relaxed),
        Fence(Acquire),
        IfNone(0, 1, not_own),
        Load(0, EXPIRED, Relaxed),
        IfAny(0, 1, not_own),
    ]
}

fn renewal() -> Vec<Step> {
    let mut steps = still_holds("not own").to_vec();
    steps.extend([Change(0, RENEWED_AT, Max(1), SeqCst), Fence(SeqCst)]);
    steps.extend(still_holds("not own"));
    steps.extend([
        End(Outcome::Renewed),
        Label("not own"),
        // Only what was not being changed in the meantime can show that the hold is lost.
        Load(1, JOURNAL, Relaxed),
        Fence(Acquire),
        IfAny(1, 1, "unsure"),
        Load(2, OWNER, Relaxed),
        Load(3, EXPIRED, Relaxed),
        Fence(Acquire),
        Load(0, JOURNAL, Relaxed),
        // The sequence must be the same; of the values that occur, 2 follows 0.
        IfAny(0, 1, "unsure"),
        IfAny(1, 2, "compared"),
        IfAny(0, 2, "unsure"),
        Label("compared"),
        IfNone(2, 1, "lost"),
        IfAny(3, 1, "lost"),
        // The hold may be its own, so it is renewed under the lock.
        Label("unsure"),
        End(Outcome::Unsure),
        Label("lost"),
        End(Outcome::Lost),
    ]);
    steps
}

fn end_of_lease() -> Vec<Step> {
    vec![
        Load(0, RENEWED_AT, Relaxed),
        IfAny(0, 1, "was renewed"),
        Store(JOURNAL, 1, Release),
        Fence(Release),
        Store(EXPIRED, 1, Relaxed),
        Store(OWNER, 0, Relaxed),
        Fence(SeqCst),
        Load(0, RENEWED_AT, Relaxed),
        IfNone(0, 1, "commit"),
        // Undone.
        Store(OWNER, 1, Relaxed),
        Store(EXPIRED, 0, Relaxed),
        Store(JOURNAL, 2, Release),
        Label("was renewed"),
        End(Outcome::Done),
        Label("commit"),
        Store(JOURNAL, 2, Release),
        End(Outcome::Expired),
    ]
}

const BOTH: &str = "a lease was renewed and ended";
const NEITHER: &str = "a lease that was not ended is said to be lost";

fn wrong(machine: &Machine) -> Option<&'static str> {
    match [0, 1].map(|thread| machine.outcome(thread)) {
        [Some(Outcome::Renewed), Some(Outcome::Expired)] => Some(BOTH),
        [Some(Outcome::Lost), Some(Outcome::Done)] => Some(NEITHER),
        _ => None,
    }
}

fn bounds(processor: Processor, threads: [Vec<Step>; 2]) -> Bounds {
    Bounds {
        processor,
        threads: threads.into(),
        words: [0, 1, 0, 0, 0, 0, 0, 0],
        wrong,
    }
}

fn is_full_fence(step: &Step) -> bool {
    matches!(step, Fence(SeqCst))
}

#[test]
fn no_lease_is_renewed_and_ended_and_none_is_lost_that_was_not_ended() {
    for processor in [Processor::AnyOther, Processor::X86] {
        nothing_is_wrong::<Machine>(&bounds(processor, [renewal(), end_of_lease()]), 300);
    }
}

#[test]
fn finds_that_a_renewal_looks_without_a_fence() {
    let renewal = without(renewal(), is_full_fence);
    is_found::<Machine>(&bounds(Processor::AnyOther, [renewal, end_of_lease()]), BOTH);
}

#[test]
fn finds_that_the_end_of_a_lease_looks_without_a_fence() {
    let end = without(end_of_lease(), is_full_fence);
    for processor in [Processor::AnyOther, Processor::X86] {
        is_found::<Machine>(&bounds(processor, [renewal(), end.clone()]), BOTH);
    }
}

#[test]
fn finds_that_a_renewal_believes_what_is_being_changed() {
    let renewal = without(renewal(), |step| matches!(step, IfAny(_, _, "unsure")));
    is_found::<Machine>(&bounds(Processor::AnyOther, [renewal, end_of_lease()]), NEITHER);
}
