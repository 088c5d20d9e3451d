//! Processors that reorder loads and stores, explored: the parts of the protocol that are not under the lock, or that are about
//! its release, step by step as the engine takes them, with the order that it asks of each step.
//!
//! Memory is what the model of C and Rust leaves of it: of each word the values that were stored, in their order. A load may answer an
//! old one, unless the thread has seen a later one, itself or by what it synchronised with. Two stores to one word are in
//! the order in which they are made, which is all that these protocols need: they store under the lock or by an atomic change.

mod machine;
mod mark_order;
mod renewal_order;
mod wake_order;

use std::sync::atomic::Ordering;

use machine::Machine;

/// A word, by its number.
type Word = usize;
/// A register of a thread, by its number.
type Register = usize;

const REGISTERS: usize = 4;
const WORDS: usize = 8;

/// What a thread does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(Register, Word, Ordering),
    Store(Word, u8, Ordering),
    /// Changes the word in one step; the register gets what it was.
    Change(Register, Word, Change, Ordering),
    /// Replaces the first value by the second; the register gets 1 if it did. Where it does not, its load is relaxed.
    Replace(Register, Word, u8, u8, Ordering),
    Fence(Ordering),
    /// As a fence of all orders, but left out on x86-64, where an atomic change is one already.
    FenceAfterChange,
    /// Sleeps while the word, as the kernel finds it, is what the register says.
    Sleep(Word, Register),
    /// Goes on at that place, if the register has one of those bits set.
    IfAny(Register, u8, &'static str),
    /// Goes on at that place, if the register has none of those bits set.
    IfNone(Register, u8, &'static str),
    Go(&'static str),
    Place(&'static str),
    /// Says how this came out.
    End(Outcome),
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Swap(u8),
    Or(u8),
    Add(u8),
    Subtract(u8),
    Max(u8),
}

impl Change {
    fn of(self, value: u8) -> u8 {
        match self {
            Self::Swap(new) => new,
            Self::Or(bits) => value | bits,
            Self::Add(amount) => value + amount,
            Self::Subtract(amount) => value - amount,
            Self::Max(other) => value.max(other),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Done,
    Renewed,
    Lost,
    Expired,
    Unsure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    /// As weak as the model of memory allows, with all fences.
    AnyOther,
    /// Without the fences that are left out there. Its atomic changes are fences of all orders.
    X86,
}

/// What is explored.
struct Bounds {
    processor: Processor,
    threads: Vec<Vec<Step>>,
    /// What each word is at first.
    words: [u8; WORDS],
    /// What must not be, where nothing is left to do.
    wrong: fn(&Machine) -> Option<&'static str>,
}

impl std::fmt::Debug for Bounds {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.processor)
    }
}

/// The same without the step at that index: a mistake.
fn without(mut steps: Vec<Step>, is_left_out: impl Fn(&Step) -> bool) -> Vec<Step> {
    let before = steps.len();
    steps.retain(|step| !is_left_out(step));
    assert!(steps.len() < before, "there is no such step");
    steps
}
