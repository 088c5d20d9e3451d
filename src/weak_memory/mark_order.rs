//! A mark left while another process has the lock, and the release of that lock: `src/engine/settle/marks.rs`.
//!
//! The holder of the lock releases it and then checks whether anything was marked; the process that leaves a mark
//! says so and then tries the lock. One of the two sees the other, and finishes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::Change::{Max, Or, Subtract, Swap};
use super::Step::{Change, End, Fence, FenceAfterChange, Go, IfAny, IfNone, Label, Load, Replace, Store};
use super::machine::Machine;
use super::{Bounds, Outcome, Processor, Step, without};
use crate::explorer::{is_found, nothing_is_wrong};

const LOCK: usize = 0;
const MARKS: usize = 1;
/// The mark at the place.
const RETURNED: usize = 2;
/// Whether the return was finished.
const FINISHED: usize = 3;

/// Bit 0 of the marks, and above it the bit that says that only the place is to be searched.
const MARKED: u8 = 1;
const ONE_PLACE: u8 = 2;

/// `finish_marks`: checks for marks, tries the lock, searches, releases it, and checks again.
fn finish_marks() -> Vec<Step> {
    vec![
        Label("look"),
        FenceAfterChange,
        Load(0, MARKS, Relaxed),
        IfNone(0, 0xff, "end"),
        Replace(1, LOCK, 0, 1, AcqRel),
        IfNone(1, 1, "end"),
        Load(0, MARKS, Relaxed),
        IfNone(0, 0xff, "unlock"),
        Fence(Acquire),
        // Continues a search that somebody else began and did not finish.
        IfAny(0, ONE_PLACE, "search"),
        Change(0, MARKS, Swap(ONE_PLACE), AcqRel),
        Label("search"),
        Load(0, RETURNED, Relaxed),
        IfNone(0, 1, "searched"),
        Store(FINISHED, 1, Relaxed),
        Label("searched"),
        Change(0, MARKS, Subtract(ONE_PLACE), Release),
        Label("unlock"),
        Change(0, LOCK, Swap(0), Release),
        Go("look"),
        Label("end"),
        End(Outcome::Done),
    ]
}

/// Has the lock at first.
fn holder() -> Vec<Step> {
    let mut steps = vec![Change(0, LOCK, Swap(0), Release)];
    steps.extend(finish_marks());
    steps
}

fn leaver() -> Vec<Step> {
    let mut steps = vec![
        Change(0, RETURNED, Max(1), SeqCst),
        Change(0, MARKS, Or(MARKED), SeqCst),
        FenceAfterChange,
    ];
    steps.extend(finish_marks());
    steps
}

const LEFT_ALONE: &str = "a mark is left alone";

fn wrong(machine: &Machine) -> Option<&'static str> {
    let is_left_alone = machine.latest(FINISHED) == 0 || machine.latest(MARKS) != 0;
    is_left_alone.then_some(LEFT_ALONE)
}

fn bounds(processor: Processor, threads: Vec<Vec<Step>>) -> Bounds {
    Bounds {
        processor,
        threads,
        words: [1, 0, 0, 0, 0, 0, 0, 0],
        wrong,
    }
}

fn is_any_fence(step: &Step) -> bool {
    matches!(step, FenceAfterChange)
}

#[test]
fn of_who_leaves_a_mark_and_who_releases_the_lock_one_sees_the_other() {
    for processor in [Processor::AnyOther, Processor::X86] {
        nothing_is_wrong::<Machine>(&bounds(processor, vec![holder(), leaver()]), 100);
    }
}

#[test]
fn a_mark_that_is_left_during_a_search_is_found() {
    // The holder of the lock finds an earlier mark, and searches while another mark is left.
    let searching = {
        let mut steps = vec![
            Change(0, MARKS, Or(MARKED), SeqCst),
            Change(0, LOCK, Swap(0), Release),
        ];
        steps.extend(finish_marks());
        steps
    };
    for processor in [Processor::AnyOther, Processor::X86] {
        nothing_is_wrong::<Machine>(&bounds(processor, vec![searching.clone(), leaver()]), 1_000);
    }
}

#[test]
fn finds_that_who_releases_the_lock_looks_without_a_fence() {
    let threads = vec![without(holder(), is_any_fence), leaver()];
    is_found::<Machine>(&bounds(Processor::AnyOther, threads), LEFT_ALONE);
}

#[test]
fn finds_that_who_leaves_a_mark_tries_the_lock_without_a_fence() {
    let threads = vec![holder(), without(leaver(), is_any_fence)];
    is_found::<Machine>(&bounds(Processor::AnyOther, threads), LEFT_ALONE);
}

#[test]
fn finds_that_it_is_said_before_it_is_marked() {
    let mut leaver = leaver();
    leaver.swap(0, 1);
    is_found::<Machine>(&bounds(Processor::AnyOther, vec![holder(), leaver]), LEFT_ALONE);
}

#[test]
fn finds_that_a_search_sees_what_was_said_and_not_what_was_marked() {
    let relaxed = |step: Step| match step {
        Change(register, MARKS, Swap(value), _) => Change(register, MARKS, Swap(value), Relaxed),
        other => other,
    };
    let holder = without(holder(), |step| matches!(step, Fence(Acquire)));
    let holder = without(holder, is_any_fence).into_iter().map(relaxed).collect();
    is_found::<Machine>(&bounds(Processor::AnyOther, vec![holder, leaver()]), LEFT_ALONE);
}
