//! How a limit that hosts share is declared.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip128::SipHasher13;

use super::amount::Amount;
use super::lease_length::LeaseLength;
use super::safe_share::SafeShare;
use super::window::{Weekday, Window};
use crate::choices::Outage;

/// How the hosts of a fleet share a limit: the key in the store, the length of leases, and what happens while the
/// store is down. See [`Limit::fleet`](crate::Limit::fleet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct FleetLease {
    pub(in crate::declaration) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) lease: Option<LeaseLength>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outage: Option<Outage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) safe: Option<SafeShare>,
    pub(in crate::declaration) cold_wait: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unleased: Option<Amount>,
}

/// How long a request waits for the store's answer by default.
const COLD_WAIT: Duration = Duration::from_millis(50);

impl FleetLease {
    /// Shares a limit under a key of the store, 1 to 200 bytes, such as `"org/openai/tokens"`. All hosts that use the
    /// key share the limit and must declare it alike.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            lease: None,
            outage: None,
            safe: None,
            cold_wait: None,
            unleased: None,
        }
    }

    /// How long units are leased to a host, from 100 ms to 1 h. What a host cannot report because it died counts as
    /// spent when its lease expires.
    ///
    /// By default it follows from the limit, between 100 ms and 10 s: half the time in which its burst comes back, a
    /// sixteenth of its window, or 2 s for places. So the burst is large enough to use all of the rate, unless it comes
    /// back in less than 135 ms: then [`Declaration::warnings`](crate::Declaration::warnings) says how much can be used.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(LeaseLength::Declared(Window::Span(lease)));
        self
    }

    /// What happens to the limit while the store does not answer; [`Outage::SpendOut`] by default.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.outage = Some(outage);
        self
    }

    /// With [`Outage::Safe`]: how many units this host goes on with in each window of the limit, or how many places. By
    /// default, the capacity divided by the number of hosts that the store last knew of. It does not depend on what is
    /// left when the outage begins.
    pub fn safe(mut self, amount: impl Into<Amount>) -> Self {
        self.safe = Some(SafeShare::Amount(amount.into()));
        self
    }

    /// Like [`safe`](Self::safe), as a fraction of the capacity: above 0 and at most 1, to six decimals.
    pub fn safe_fraction(mut self, fraction: f64) -> Self {
        self.safe = Some(SafeShare::fraction(fraction));
        self
    }

    /// How long a request waits for the store if too little is leased for it and the store has not said that nothing is
    /// left: 50 ms by default, at most 10 s; with 0 it is refused at once. This happens to the first request of a host,
    /// and to the first after more than a minute. The wait ends with the store's answer. No request waits while the store
    /// is out, or while no process asks it.
    pub fn cold_wait(mut self, cold_wait: Duration) -> Self {
        self.cold_wait = Some(Window::Span(cold_wait));
        self
    }

    /// In a keyed set: how many units of a key this host admits at once before it has asked for any; 1 by default. The
    /// store charges them afterwards, even beyond the burst, and none is admitted while the store has nothing for the
    /// key. So each host can briefly exceed a key's limit by that many units, but not its rate in the long run. With 0 the
    /// first request of a key waits for the store ([`cold_wait`](Self::cold_wait)), and nothing is exceeded. It is always 0
    /// for concurrency, where a place would exceed the limit for as long as it is held.
    pub fn unleased(mut self, units: impl Into<Amount>) -> Self {
        self.unleased = Some(units.into());
        self
    }

    /// The key in the store.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long units are leased for, if that is declared; `None` if it follows from the limit.
    pub fn lease_length(&self) -> Option<Duration> {
        self.lease.unwrap_or_default().declared()
    }

    /// How long a request waits for the store if too little is leased for it.
    pub fn cold_wait_length(&self) -> Duration {
        match self.cold_wait {
            Some(Window::Span(length)) => length,
            _ => COLD_WAIT,
        }
    }

    /// What happens to the limit while the store does not answer.
    pub fn outage_policy(&self) -> Outage {
        self.outage.unwrap_or_default()
    }

    /// A number that stands for the key in the segment, so that a changed key is noticed.
    pub(in crate::declaration) fn key_number(&self) -> u32 {
        let hash = SipHasher13::new().hash(self.key.as_bytes());
        // Zero means that there is no key yet.
        (hash.h1 as u32).max(1)
    }

    /// The same with every default written out.
    pub(in crate::declaration) fn canonical(&self) -> Self {
        Self {
            key: self.key.clone(),
            lease: Some(self.lease.unwrap_or_default()),
            outage: Some(self.outage_policy()),
            safe: self.safe.as_ref().map(SafeShare::canonical),
            cold_wait: Some(self.cold_wait.unwrap_or(Window::Span(COLD_WAIT))),
            unleased: self.unleased.as_ref().map(Amount::canonical),
        }
    }
}

/// How a limit that hosts share is counted, in whole units.
#[derive(Clone, Debug)]
pub(crate) struct SharedQuota {
    /// How long units are leased for.
    pub(crate) length: Duration,
    pub(crate) unit: String,
    pub(crate) capacity: u64,
    /// Set if units come back evenly.
    pub(crate) burst: Option<u64>,
    pub(crate) window: Option<Window>,
    pub(crate) utc_offset_minutes: i16,
    pub(crate) week_start: Weekday,
}
