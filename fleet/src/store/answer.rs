//! The store's answers.

use shmlimit::fleet::LeaseReply;

/// A grant, possibly of nothing, and what only the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The part that is installed in the segment.
    pub reply: LeaseReply,
    /// How many of the units that the host held when it asked are still leased to it: all or none.
    pub kept: u64,
    /// The store's clock when it answered, in microseconds since the Unix epoch.
    pub store_time: u64,
}

/// The store's answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreAnswer {
    /// The host's lease from now on.
    Granted(Grant),
    /// Another declaration of this limit is in force.
    Declared {
        /// The declaration in force, as text.
        in_force: String,
    },
    /// The host has already sent a request with a higher sequence number.
    Stale {
        /// The last sequence number that the store has seen from the host.
        last: u64,
    },
    /// The host reports less spent or refunded than it did before.
    SpentFell {
        /// The units that it had reported as spent, modulo 2^52.
        before: u64,
    },
    /// The key holds something that no fleet has written.
    Foreign {
        /// What it holds, in the store's words.
        found: String,
    },
    /// The key was written by another version of this protocol.
    Protocol {
        /// The version found.
        found: String,
    },
}
