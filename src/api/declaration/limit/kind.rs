//! How a limit is taken and given back, and how a capacity adapts.

use crate::engine::definition::plan;
use crate::words::words;

/// How a limit is taken and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Takes a cost that the request must name, and settles to the actual usage.
    Rate,
    /// A rate counted in calls: takes one unless the request names more.
    Calls,
    /// Capacity that is held and given back: takes one unless the request names more.
    Concurrency,
    /// Takes nothing up front: admits while any budget remains, and is debited at settle.
    Budget,
}

words!(Kind, "a kind of limit", {
    Rate = "rate",
    Calls = "calls",
    Concurrency = "concurrency",
    Budget = "budget",
});

impl From<Kind> for plan::Kind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Rate => Self::Rate,
            Kind::Calls => Self::Calls,
            Kind::Concurrency => Self::Concurrency,
            Kind::Budget => Self::Budget,
        }
    }
}

impl From<plan::Kind> for Kind {
    fn from(kind: plan::Kind) -> Self {
        match kind {
            plan::Kind::Rate => Self::Rate,
            plan::Kind::Calls => Self::Calls,
            plan::Kind::Concurrency => Self::Concurrency,
            plan::Kind::Budget => Self::Budget,
        }
    }
}

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
