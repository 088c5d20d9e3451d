//! Limits that hosts share: how they are declared, and how they are counted.

use std::time::Duration;

use crate::declaration::compile::longest_nanos;
use crate::declaration::limit::Limit;
use crate::declaration::limit::fleet_lease::{FleetLease, SharedQuota};
use crate::limit::{Supply, automatic_length};

impl Limit {
    /// How a validated limit is counted, if hosts share it.
    pub(crate) fn shared_quota(&self) -> Option<(&FleetLease, SharedQuota)> {
        let fleet = self.fleet.as_ref()?;
        let meant = self.canonical().per_window();
        let quota = SharedQuota {
            length: meant.lease_length(fleet),
            unit: meant.unit.clone().unwrap_or_else(|| "1".to_owned()),
            capacity: meant.capacity_units()?,
            burst: meant.burst_units(),
            window: meant.window,
            utc_offset_minutes: meant.utc_offset.unwrap_or_default().minutes,
            week_start: meant.week_start.unwrap_or_default(),
        };
        Some((fleet, quota))
    }

    /// How long units are leased for. The limit must be in canonical form and per window.
    pub(in crate::declaration) fn lease_length(&self, fleet: &FleetLease) -> Duration {
        if let Some(length) = fleet.lease_length() {
            return length;
        }
        let supply = match (self.window.map(longest_nanos), self.burst_units()) {
            (None, _) => Supply::Released,
            (Some(length), None) => Supply::InWindows { length },
            (Some(length), Some(burst)) => {
                let capacity = u128::from(self.capacity_units().unwrap_or(1).max(1));
                let nanos = u128::from(burst) * u128::from(length) / capacity;
                Supply::Evenly {
                    replenished_in: u64::try_from(nanos).unwrap_or(u64::MAX),
                }
            }
        };
        Duration::from_nanos(automatic_length(supply))
    }

    /// The burst of a limit in canonical form, if it has one.
    fn burst_units(&self) -> Option<u64> {
        self.burst.as_ref().and_then(|burst| self.units(burst).ok()?)
    }

    /// Shares the limit with other hosts, which lease units of it from the store at
    /// [`Declaration::fleet_url`](crate::Declaration::fleet_url). Every decision stays on this host: it spends what
    /// is leased, and more is requested in the background. A request for which too little is leased is refused with
    /// [`RefusalReason::Lease`](crate::RefusalReason::Lease) or one of its siblings, or waits in the queue.
    ///
    /// For limits with [`Gcra`](crate::Algorithm::Gcra), token bucket, leaky bucket, or a fixed window aligned to UTC or to
    /// the calendar; for budgets with such windows; and for concurrency that does not adapt. In a keyed set, hosts share
    /// the limit of each key: see [`FleetLease::unleased`]. Not with [`credit`](Self::credit), nor with a
    /// [`time_zone`](Self::time_zone).
    pub fn fleet(mut self, fleet: FleetLease) -> Self {
        self.fleet = Some(fleet);
        self
    }
}
