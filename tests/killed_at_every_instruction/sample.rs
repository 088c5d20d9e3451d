//! What a short run tries of what an ordinary one does: for each operation one in a given number, evenly spread.

use std::iter::{Skip, StepBy};

use crate::report::Way;

/// One in how many, and which one.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    one_in: usize,
    phase: usize,
    /// How far the operation that is tried is ahead of others.
    ahead: usize,
}

impl Sample {
    /// As `SHMLIMIT_ONE_IN` and `SHMLIMIT_PHASE` say. Without them, the sample is everything.
    pub fn from_environment() -> Self {
        let number = |name: &str| {
            std::env::var(name)
                .ok()
                .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
        };
        Self {
            one_in: number("SHMLIMIT_ONE_IN").unwrap_or(1).max(1),
            phase: number("SHMLIMIT_PHASE").unwrap_or(0),
            ahead: 0,
        }
    }

    pub fn is_everything(self) -> bool {
        self.one_in == 1
    }

    pub fn one_in(self) -> u64 {
        self.one_in as u64
    }

    /// Another phase for each operation, which is always the same whatever else is run.
    pub fn for_operation(self, name: &str) -> Self {
        Self {
            ahead: name.bytes().map(usize::from).sum(),
            ..self
        }
    }

    /// The number of this sample among samples of one in `turns`.
    pub fn turn(self, turns: usize) -> usize {
        (self.phase % turns + self.ahead) % turns
    }

    /// The value of `SHMLIMIT_PHASE` with which the same sample can be tried again.
    pub fn phase(self) -> usize {
        self.phase
    }

    /// Whether an operation is tried in this way. A short run tries one of the ways in `by_turns`, in turn, and always
    /// all others.
    pub fn tries(self, name: &str, way: Way, by_turns: &[Way]) -> bool {
        let Self { phase, ahead, .. } = self.for_operation(name);
        let turn = (phase % self.one_in + ahead) % by_turns.len();
        self.is_everything() || by_turns[turn] == way || !by_turns.contains(&way)
    }

    /// One in the given number of `count` things, and at least one.
    pub fn of<I: IntoIterator>(self, count: usize, all: I) -> StepBy<Skip<I::IntoIter>> {
        let first = (self.phase % self.one_in + self.ahead) % self.one_in.min(count.max(1));
        all.into_iter().skip(first).step_by(self.one_in)
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_everything() {
            return f.write_str("everything that an ordinary run tries");
        }
        let Self { one_in, phase, .. } = self;
        write!(
            f,
            "a sample, 1 in {one_in} of what an ordinary run tries: SHMLIMIT_ONE_IN={one_in} SHMLIMIT_PHASE={}",
            phase % one_in
        )
    }
}
