//! What the store answers.

use std::time::Duration;

use shmlimit::fleet::LeaseReply;

/// A grant, perhaps of nothing, and what only the client looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What is installed in the segment.
    pub reply: LeaseReply,
    /// Units of those that the host held when it asked which are still leased to it: all or none.
    pub kept: u64,
    /// The store's clock when it answered, in microseconds since the Unix epoch.
    pub store_time: u64,
}

/// What the store answers to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The host's lease from now on.
    Granted(Grant),
    /// Nothing is granted for so long, because what the store knows may be older than what it acknowledged.
    Quarantine {
        /// How long nothing is granted.
        remaining: Duration,
        /// The store's clock when it answered, in microseconds since the Unix epoch.
        store_time: u64,
    },
    /// Another declaration of this limit is in force.
    Declared {
        /// The declaration in force, as text.
        in_force: String,
    },
    /// The host has asked with a higher sequence before.
    Stale {
        /// The last sequence that the store has seen of the host.
        last: u64,
    },
    /// The host reports less spent or refunded than it reported before.
    SpentFell {
        /// Units spent that it reported before, modulo 2^52.
        before: u64,
    },
    /// The key holds something that no fleet has written.
    Foreign {
        /// What it holds, in the store's words.
        found: String,
    },
    /// The key was written by another version of this protocol.
    Protocol {
        /// The version that was found.
        found: String,
    },
}
