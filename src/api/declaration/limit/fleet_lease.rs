//! A limit that hosts share, as it is declared.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip128::SipHasher13;

use super::window::{Weekday, Window};
use crate::limit::OutagePolicy;
use crate::words::words;

/// What becomes of a limit that hosts share while the store does not answer. Each limit has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outage {
    /// Refuse from the moment the store is known to be out, also what is leased already.
    Deny,
    /// Spend what is leased until the lease expires, then refuse.
    #[default]
    SpendOut,
    /// Go on at the host's last fair share: a host that is cut off may add as much to what the fleet admits.
    Safe,
    /// Admit everything and count it.
    Open,
}

words!(Outage, "a policy for outages", {
    Deny = "deny",
    SpendOut = "spend_out",
    Safe = "safe",
    Open = "open",
});

/// How a limit is shared by the hosts of a fleet: under which key of the store, in leases of what length, and what becomes
/// of it while the store is out. See [`Limit::fleet`](crate::Limit::fleet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct FleetLease {
    pub(in crate::api::declaration) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api::declaration) lease: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outage: Option<Outage>,
}

/// For how long units are leased unless declared.
const LEASE: Duration = Duration::from_secs(2);

impl From<Outage> for OutagePolicy {
    fn from(outage: Outage) -> Self {
        match outage {
            Outage::Deny => Self::Deny,
            Outage::SpendOut => Self::SpendOut,
            Outage::Safe => Self::Safe,
            Outage::Open => Self::Open,
        }
    }
}

impl From<OutagePolicy> for Outage {
    fn from(outage: OutagePolicy) -> Self {
        match outage {
            OutagePolicy::Deny => Self::Deny,
            OutagePolicy::SpendOut => Self::SpendOut,
            OutagePolicy::Safe => Self::Safe,
            OutagePolicy::Open => Self::Open,
        }
    }
}

impl FleetLease {
    /// Shared under that key of the store, 1 to 200 bytes, such as `"org/openai/tokens"`. All hosts that use the key share
    /// the limit, and must declare it alike.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            lease: None,
            outage: None,
        }
    }

    /// For how long units are leased to a host, from 100 ms to 1 h; 2 s unless declared. What a host does not report
    /// because it died counts as spent when its lease expires.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(Window::Span(lease));
        self
    }

    /// What becomes of the limit while the store does not answer; [`Outage::SpendOut`] unless declared.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.outage = Some(outage);
        self
    }

    /// The key in the store.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// For how long units are leased.
    pub fn lease_length(&self) -> Duration {
        match self.lease {
            Some(Window::Span(length)) => length,
            _ => LEASE,
        }
    }

    /// What becomes of the limit while the store does not answer.
    pub fn outage_policy(&self) -> Outage {
        self.outage.unwrap_or_default()
    }

    /// A number that stands for the key in the segment, by which another key is known for another limit.
    pub(in crate::api::declaration) fn key_number(&self) -> u32 {
        let hash = SipHasher13::new().hash(self.key.as_bytes());
        // Zero is no key yet.
        (hash.h1 as u32).max(1)
    }

    /// The same with every default written out.
    pub(in crate::api::declaration) fn canonical(&self) -> Self {
        Self {
            key: self.key.clone(),
            lease: Some(self.lease.unwrap_or(Window::Span(LEASE))),
            outage: Some(self.outage_policy()),
        }
    }
}

/// By what a limit that hosts share is counted, in whole units.
#[derive(Clone, Debug)]
pub(in crate::api) struct LeaseTerms {
    pub(in crate::api) unit: String,
    pub(in crate::api) capacity: u64,
    /// Where units come back evenly.
    pub(in crate::api) burst: Option<u64>,
    pub(in crate::api) window: Option<Window>,
    pub(in crate::api) utc_offset_minutes: i16,
    pub(in crate::api) week_start: Weekday,
}
