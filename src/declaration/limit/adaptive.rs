//! How an adaptive capacity is estimated.

use crate::words::words;

/// How an adaptive concurrency limit estimates how much may be held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Adaptive {
    /// By failures: up by one while work succeeds, down by a fraction when it is dropped or takes too long.
    Aimd,
    /// By how latency grows relative to its long-term average.
    Gradient,
    /// By how much work queues behind the limit, inferred from the least latency ever seen.
    Vegas,
}

words!(Adaptive, "a way to adapt", {
    Aimd = "aimd",
    Gradient = "gradient",
    Vegas = "vegas",
});
