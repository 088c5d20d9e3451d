//! A limit that hosts share: how it is declared, and by what it is counted.

use crate::api::declaration::limit::Limit;
use crate::api::declaration::limit::fleet_lease::{FleetLease, LeaseTerms};

impl Limit {
    /// By what it is counted, where hosts share it. Of a validated limit.
    pub(in crate::api) fn lease_terms(&self) -> Option<(&FleetLease, LeaseTerms)> {
        let fleet = self.fleet.as_ref()?;
        let meant = self.canonical().per_window();
        let burst = meant.burst.as_ref().and_then(|burst| meant.units(burst).ok()?);
        let terms = LeaseTerms {
            unit: meant.unit.clone().unwrap_or_else(|| "1".to_owned()),
            capacity: meant.capacity_units()?,
            burst,
            window: meant.window,
            utc_offset_minutes: meant.utc_offset.unwrap_or_default().minutes,
            week_start: meant.week_start.unwrap_or_default(),
        };
        Some((fleet, terms))
    }

    /// Shares the limit with other hosts, which lease units of it from the store that
    /// [`Declaration::fleet_url`](crate::Declaration::fleet_url) names. Every decision stays on this host: what is leased is
    /// spent, and asked for in the background. A request for which too little is leased is refused for
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease), or waits in the queue.
    ///
    /// For limits of a set without keys, by [`Gcra`](crate::Algorithm::Gcra), token bucket, leaky bucket or a fixed window
    /// that is aligned to UTC or to the calendar; for such budgets, and for concurrency that does not adapt. Not with
    /// [`credit`](Self::credit).
    pub fn fleet(mut self, fleet: FleetLease) -> Self {
        self.fleet = Some(fleet);
        self
    }
}
