//! Tickets that are granted, and the process that sleeps until it finds them: `src/shm/wake/wake_list.rs`, and those
//! who advance the process futex and sleep on it.
//!
//! Whoever grants stores the ticket, takes a number, writes the entry for that number, and advances the futex. The
//! reader loads the futex, then the count, then the entries; if one is not there, it looks at all tickets. Then it
//! sleeps, unless the futex was advanced. Each number is read once.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Change::Add;
use super::Step::{Change, End, Fence, Go, IfAny, IfNone, Label, Load, Sleep, Store};
use super::machine::Machine;
use super::{Bounds, Outcome, Processor, Step, without};
use crate::explorer::{is_found, nothing_is_wrong};

const FUTEX: usize = 0;
const COUNT: usize = 1;
/// One for each number, containing the ticket, counted from one.
const ENTRIES: [usize; 2] = [2, 3];
const TICKETS: [usize; 2] = [4, 5];
/// What the reader has found.
const FOUND: [usize; 2] = [6, 7];

/// Grants a ticket.
fn grant(ticket: usize) -> Vec<Step> {
    let entry = [1, 2][ticket];
    vec![
        Store(TICKETS[ticket], 1, Relaxed),
        Change(0, COUNT, Add(1), Release),
        IfAny(0, 1, "second"),
        Store(ENTRIES[0], entry, Release),
        Go("wake"),
        Label("second"),
        Store(ENTRIES[1], entry, Release),
        Label("wake"),
        Change(0, FUTEX, Add(1), Release),
        End(Outcome::Done),
    ]
}

/// A place in a part of the program that occurs several times.
fn place(name: &str, part: &str) -> &'static str {
    format!("{name}, {part}").leak()
}

/// Checks whether a ticket is granted.
fn look_at(ticket: usize, part: &str) -> Vec<Step> {
    let not_granted = place(&format!("ticket {ticket} is not granted"), part);
    vec![
        Load(3, TICKETS[ticket], Relaxed),
        IfNone(3, 1, not_granted),
        Store(FOUND[ticket], 1, Relaxed),
        Label(not_granted),
    ]
}

/// Reads the entry of a number.
fn read(number: usize, part: &str) -> Vec<Step> {
    let [first, second, done] = ["first", "second", "read"].map(|name| place(name, part));
    let mut steps = vec![
        Load(2, ENTRIES[number], Relaxed),
        Fence(Acquire),
        IfAny(2, 1, first),
        IfAny(2, 2, second),
    ];
    for ticket in 0..2 {
        steps.extend(look_at(ticket, &format!("{part}, of all")));
    }
    steps.extend([Go(done), Label(first)]);
    steps.extend(look_at(0, part));
    steps.extend([Go(done), Label(second)]);
    steps.extend(look_at(1, part));
    steps.push(Label(done));
    steps
}

/// Looks and sleeps, and looks again whenever it is woken.
fn reader() -> Vec<Step> {
    let see_count = [Load(0, FUTEX, Acquire), Load(1, COUNT, Relaxed), Fence(Acquire)];
    let mut steps = vec![Label("none was read")];
    steps.extend(see_count);
    steps.extend([IfAny(1, 1, "one is new"), IfAny(1, 2, "two are new")]);
    steps.extend([Sleep(FUTEX, 0), Go("none was read"), Label("one is new")]);
    steps.extend(read(0, "alone"));
    steps.extend([Sleep(FUTEX, 0), Label("one was read")]);
    steps.extend(see_count);
    steps.extend([
        IfAny(1, 2, "the second is new"),
        Sleep(FUTEX, 0),
        Go("one was read"),
    ]);
    steps.push(Label("two are new"));
    steps.extend(read(0, "of two"));
    steps.push(Label("the second is new"));
    steps.extend(read(1, "the second"));
    steps.push(End(Outcome::Done));
    steps
}

const NOT_FOUND: &str = "a ticket is granted, and its process does not find it";

fn wrong(machine: &Machine) -> Option<&'static str> {
    let is_found = |word: &usize| machine.latest(*word) == 1;
    (!FOUND.iter().all(is_found)).then_some(NOT_FOUND)
}

fn bounds(processor: Processor, grant: impl Fn(usize) -> Vec<Step>, reader: Vec<Step>) -> Bounds {
    Bounds {
        processor,
        threads: vec![grant(0), grant(1), reader],
        words: [0; 8],
        wrong,
    }
}

/// The grants, with changes of `word` relaxed.
fn relaxed(word: usize) -> impl Fn(usize) -> Vec<Step> {
    move |ticket| {
        let steps = grant(ticket).into_iter();
        let relaxed = steps.map(|step| match step {
            Change(register, at, change, _) if at == word => Change(register, at, change, Relaxed),
            other => other,
        });
        relaxed.collect()
    }
}

#[test]
fn every_ticket_that_is_granted_is_found() {
    for processor in [Processor::AnyOther, Processor::X86] {
        nothing_is_wrong::<Machine>(&bounds(processor, grant, reader()), 1_000);
    }
}

#[test]
fn finds_a_number_that_carries_nothing() {
    is_found::<Machine>(&bounds(Processor::AnyOther, relaxed(COUNT), reader()), NOT_FOUND);
}

#[test]
fn finds_a_futex_that_carries_nothing() {
    is_found::<Machine>(&bounds(Processor::AnyOther, relaxed(FUTEX), reader()), NOT_FOUND);
}

#[test]
fn finds_a_reader_that_believes_a_number_at_once() {
    let reader = without(reader(), |step| matches!(step, Fence(Acquire)));
    is_found::<Machine>(&bounds(Processor::AnyOther, grant, reader), NOT_FOUND);
}

#[test]
fn finds_a_futex_that_is_advanced_before_the_number_is_taken() {
    let early = |ticket| {
        let mut steps = grant(ticket);
        let advance = steps.remove(8);
        steps.insert(1, advance);
        steps
    };
    for processor in [Processor::AnyOther, Processor::X86] {
        is_found::<Machine>(&bounds(processor, early, reader()), NOT_FOUND);
    }
}

#[test]
fn finds_a_reader_that_loads_the_futex_last() {
    let mut steps = Vec::new();
    for step in without(reader(), |step| matches!(step, Load(_, FUTEX, _))) {
        if matches!(step, Sleep(..)) {
            steps.push(Load(0, FUTEX, Acquire));
        }
        steps.push(step);
    }
    is_found::<Machine>(&bounds(Processor::AnyOther, grant, steps), NOT_FOUND);
}
