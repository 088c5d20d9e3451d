//! What an estimate learns from.

/// How one piece of work fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Nanoseconds from when the units were taken to when they are given back.
    pub(crate) latency: u64,
    /// Units in use just before these were given back, by all holders.
    pub(crate) in_flight: u64,
    /// Whether the work failed in a way that speaks of overload. Its latency says nothing then.
    pub(crate) failed: bool,
}
