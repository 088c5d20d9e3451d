//! How long the network may take.

use std::time::Duration;

/// How long the network may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect to one server and authenticate.
    pub connect: Duration,
    /// To send requests and receive all answers. Looking up the primary through sentinels, or the servers of a cluster,
    /// may take both timeouts together.
    pub answer: Duration,
}

impl Default for Timeouts {
    /// A second for each.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            answer: Duration::from_secs(1),
        }
    }
}
