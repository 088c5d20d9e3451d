//! Explores processors that reorder loads and stores. The models cover the parts of the protocol that are not under
//! the lock, or that concern its release, step by step as the engine takes them and with the memory ordering it asks
//! for.
//!
//! Memory is what the memory model of C and Rust guarantees: for each word, the stored values in order. A load may
//! return an old one, unless the thread has seen a later one, either itself or through synchronisation. Two stores to
//! one word are ordered as they are made. That is enough here, because these protocols store under the lock or by an
//! atomic change.

mod machine;
mod mark_order;
mod renewal_order;
mod wake_order;

use std::sync::atomic::Ordering;

use machine::Machine;

/// A word, by its number.
type Word = usize;
/// A thread's register, by its number.
type Register = usize;

const REGISTERS: usize = 4;
const WORDS: usize = 8;

/// A thread's step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(Register, Word, Ordering),
    Store(Word, u8, Ordering),
    /// Changes the word atomically; the register gets the old value.
    Change(Register, Word, Change, Ordering),
    /// Replaces the first value with the second; the register gets 1 if it did. If it does not, its load is relaxed.
    Replace(Register, Word, u8, u8, Ordering),
    Fence(Ordering),
    /// A sequentially consistent fence, left out on x86-64, where an atomic change is one already.
    FenceAfterChange,
    /// Sleeps while the word, as the kernel sees it, equals the register.
    Sleep(Word, Register),
    /// Continues at that place if the register has any of those bits set.
    IfAny(Register, u8, &'static str),
    /// Continues at that place if the register has none of those bits set.
    IfNone(Register, u8, &'static str),
    Go(&'static str),
    Label(&'static str),
    /// Reports the outcome.
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
    /// As weak as the memory model allows, with all fences.
    AnyOther,
    /// Without the fences that are left out there; its atomic changes are sequentially consistent fences.
    X86,
}

/// What to explore.
struct Bounds {
    processor: Processor,
    threads: Vec<Vec<Step>>,
    /// The initial value of each word.
    words: [u8; WORDS],
    /// What must not be the case when nothing is left to do.
    wrong: fn(&Machine) -> Option<&'static str>,
}

impl std::fmt::Debug for Bounds {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.processor)
    }
}

/// The same steps without some of them: a mistake.
fn without(mut steps: Vec<Step>, is_left_out: impl Fn(&Step) -> bool) -> Vec<Step> {
    let before = steps.len();
    steps.retain(|step| !is_left_out(step));
    assert!(steps.len() < before, "there is no such step");
    steps
}
