//! What can be wrong with the store, or with what it says.

use crate::words::words;

/// Why the store has granted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreProblem {
    /// It does not answer: not to be reached, or not in time. The [outage policy](crate::Outage) applies.
    Unreachable,
    /// It answers and refuses this client: a wrong user or password, or a permission that is missing. The outage policy
    /// applies.
    Denied,
    /// It cannot run what it is asked to: a server without scripting, or of too old a version. The outage policy applies.
    Unsupported,
    /// The key holds something else. The outage policy applies.
    WrongKey,
    /// Another declaration of the limit is in force under the key. The outage policy applies.
    Mismatch,
    /// It grants nothing for a while, because it may have lost what it had acknowledged. What is leased goes on.
    Quarantine,
    /// The host has asked for more since: two hosts have the same identity, or the store was restored from a copy. What is
    /// leased goes on.
    Stale,
}

words!(StoreProblem, "a problem of a store", {
    Unreachable = "unreachable",
    Denied = "denied",
    Unsupported = "unsupported",
    WrongKey = "wrong_key",
    Mismatch = "mismatch",
    Quarantine = "quarantine",
    Stale = "stale",
});
