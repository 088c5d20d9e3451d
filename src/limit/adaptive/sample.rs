//! What an estimate learns from.

/// How one piece of work fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Nanoseconds from when the units were taken until they are given back.
    pub(crate) latency: u64,
    /// Units in use just before these were given back, over all holders.
    pub(crate) in_flight: u64,
    /// Whether the work failed in a way that suggests overload. Its latency means nothing then.
    pub(crate) failed: bool,
}
