//! The pure limit rules: (state, now, cost, parameters) to a verdict and a new state.
//!
//! A rule knows no clock, no memory and no lock. Its state is a row of 64-bit words behind [`State`], its time is
//! handed in as [`Now`], and a row of zeros is a limit that nobody has used yet.

mod gcra;

pub(crate) use gcra::Gcra;

/// The instant at which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Nanoseconds on the segment's monotonic clock.
    pub(crate) monotonic: u64,
    /// Nanoseconds since the Unix epoch; read only by windows that are aligned to UTC, zero otherwise.
    pub(crate) utc: u64,
}

/// A row of words that a rule reads. Every word may hold anything: a rule never panics on what it finds.
pub(crate) trait State {
    /// The word at `index`, which is below the rule's `state_words()`.
    fn load(&self, index: usize) -> u64;
}

/// A row of words that a rule may change.
pub(crate) trait StateMut: State {
    /// Replaces the word at `index`, which is below the rule's `state_words()`.
    fn store(&mut self, index: usize, value: u64);
}

/// What a rule says to a cost at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assessment {
    /// The cost may be charged now.
    Admissible,
    /// The cost does not fit now. `retry_after` is the least number of nanoseconds after which it will, if nobody
    /// else takes anything; `None` where time alone cannot help.
    Refused {
        /// Nanoseconds, positive.
        retry_after: Option<u64>,
    },
}

/// The figures from which a [`Standing`] can be worked out later: what a rule notes at decision time, so that the
/// divisions are paid by whoever asks and not inside the critical section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// How a limit stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Units that could be taken at once.
    pub(crate) remaining: u64,
    /// Nanoseconds until the limit is completely replenished if nobody takes anything; zero where it is.
    pub(crate) reset_after: u64,
}

/// Why the parameters of a limit cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidLimit {
    #[error("the {0} must be positive")]
    Zero(&'static str),
    #[error("{0} cannot be computed exactly in 128 bits: choose a smaller capacity, burst or window")]
    TooLarge(&'static str),
    #[error("the {what} is {given}, the most is {most}")]
    AboveMost { what: &'static str, given: u64, most: u64 },
}

#[cfg(test)]
impl State for [u64] {
    fn load(&self, index: usize) -> u64 {
        self[index]
    }
}

#[cfg(test)]
impl StateMut for [u64] {
    fn store(&mut self, index: usize, value: u64) {
        self[index] = value;
    }
}
