//! Limits that hosts share: how they are declared, and how they are counted.

use crate::declaration::limit::Limit;
use crate::declaration::limit::fleet_lease::{FleetLease, LeaseTerms};

impl Limit {
    /// How a validated limit is counted, if hosts share it.
    pub(crate) fn lease_terms(&self) -> Option<(&FleetLease, LeaseTerms)> {
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

    /// Shares the limit with other hosts, which lease units of it from the store at
    /// [`Declaration::fleet_url`](crate::Declaration::fleet_url). Every decision stays on this host: it spends what
    /// is leased, and more is requested in the background. A request for which too little is leased is refused with
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease) or one of its siblings, or waits in the queue.
    ///
    /// For limits of a set that is not keyed: with [`Gcra`](crate::Algorithm::Gcra), token bucket, leaky bucket, or a
    /// fixed window aligned to UTC or to the calendar; for budgets with such windows; and for concurrency that does
    /// not adapt. Not with [`credit`](Self::credit), nor with a [`time_zone`](Self::time_zone).
    pub fn fleet(mut self, fleet: FleetLease) -> Self {
        self.fleet = Some(fleet);
        self
    }
}
