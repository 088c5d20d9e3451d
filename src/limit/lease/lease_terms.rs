//! How a limit is leased, as declared.

use crate::choices::Outage;

/// How a limit is leased.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// How long units are leased for, in nanoseconds.
    pub(crate) length: u64,
    /// What the limit does while the store is out.
    pub(crate) outage: Outage,
    /// What distinguishes it from other limits in the store.
    pub(crate) key: u32,
    /// What the policy `Safe` goes on with.
    pub(crate) safe: SafeTerms,
    /// How long a request waits for the store's answer if too little is leased, in nanoseconds.
    pub(crate) cold_wait: u64,
    /// If each key has such a limit: how many units of a key this host admits before it has asked for any.
    pub(crate) unleased: Option<u64>,
}

/// What a host grants itself while the store is out, under the policy `Safe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SafeTerms {
    /// The units in each window, or the number of places.
    pub(crate) units: u64,
    /// Whether the hosts divide that among themselves.
    pub(crate) is_divided: bool,
    /// The length of a window in nanoseconds; zero for places.
    pub(crate) window: u64,
}
